"""Agents that a workflow creates while it runs: names, replay from every prefix, groups by role, credit."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from marl_verl_at_grpo.greedy_tree import GreedyTree
from marl_verl_inspect.explained import ExplainedRows
from marl_verl_sharp.counterfactual import Counterfactual, SampledShapley
from marl_verl_testing import ScriptedContext, ScriptedPolicy, check_credit, check_workflow, shown

from marl_verl import Task, Workflow
from marl_verl.algo.advantage import RowTable
from marl_verl.algo.sampling import Independent
from marl_verl.algo.sampling.context import TaskContext
from marl_verl.backend.rollout.context import PolicySamplingContext, WorkerContext
from marl_verl.episode import Team
from marl_verl.episode.codec import decode_episode, encode_episode
from marl_verl.episode.effects import ContextLengthExceeded
from marl_verl.episode.errors import Limits
from marl_verl.episode.messages import as_observation
from marl_verl.tasks import TaskSet
from marl_verl.team import AgentConfig, acting
from marl_verl.trainer.metrics import agent_statistics
from tests.batches import algorithm

TASK = Task("q", "how many?")


def policy(planner: Any) -> ScriptedPolicy:
    return ScriptedPolicy({"planner": planner, "worker": lambda act: f"{act.agent} {shown(act)}"})


class Crew(Workflow):
    """The planner says how many workers there are; they act in a joint move."""

    async def run(self, task: Task, team: Team) -> str:
        said = (await team["planner"].act(task.prompt)).text
        workers = [team.spawn("worker", f"part {part}") for part in range(int(said) if said.isdigit() else 1)]
        done = await team.act({worker.name: task.prompt for worker in workers})
        return f"{len(done)} {(await workers[-1].act('check')).text}"


class Parts(Workflow):
    """Parallel tasks create workers after an act, and one in a task that is created alone."""

    parts: int = 3

    async def run(self, task: Task, team: Team) -> str:
        first = await team.spawn("worker").act("first")
        texts = await asyncio.gather(*(self._part(team, part) for part in range(self.parts)))
        return " ".join([first.text, *texts, (await team.spawn("worker").act("last")).text])

    async def _part(self, team: Team, part: int) -> str:
        asked = await team["planner"].act(f"part {part}", slot=f"part-{part}")
        done = [(await team.spawn("worker").act(asked.text)).text for _ in range(1 + part)]
        return " ".join([*done, await asyncio.create_task(self._helped(team))])

    async def _helped(self, team: Team) -> str:
        return str((await team.spawn("worker").act("help")).text)


@pytest.mark.parametrize("size", [1, 2, 7, 64])
def test_a_team_of_any_size_is_replayable(size: int) -> None:
    run = check_workflow(Crew(), TASK, policy(str(size)), seconds=300)
    assert [act.agent for act, _ in run.turns[1:-1]] == [f"worker#{number}" for number in range(1, size + 1)]
    assert run.turns[-1].act.key == (f"worker#{size}", "1")
    assert [message["content"] for message in run.turns[1].act.observation] == ["part 0", "how many?"]


@pytest.mark.parametrize("parts", [1, 3])
def test_names_of_parallel_tasks_do_not_depend_on_arrivals(parts: int) -> None:
    run = check_workflow(Parts(parts), TASK, policy("same"), orders=8)
    own = {f"worker#{part}.{n}" for part in range(1, parts + 1) for n in range(1, part + 1)}
    alone = {f"worker#{part}.1.1" for part in range(1, parts + 1)}
    assert {act.agent for act, _ in run.turns} == {"planner", "worker#1", "worker#2"} | own | alone


class Together(Workflow):
    """Tasks that are created one after another create workers at the same time."""

    async def run(self, task: Task, team: Team) -> str:
        async with asyncio.TaskGroup() as group:
            for part in range(2):
                await team["planner"].act(f"part {part}")
                group.create_task(self._part(team, f"part-{part}"))
        return "done"

    async def _part(self, team: Team, slot: str) -> None:
        await team["planner"].act(slot, slot=slot)
        await team.spawn("worker").act("go")


class Other(Workflow):
    """A worker acts with another policy."""

    async def run(self, task: Task, team: Team) -> str:
        return (await team.spawn("worker", policy=task.prompt).act("go")).text


def test_what_ends_an_episode() -> None:
    for workflow, script, message in (
        (Together(), policy("3"), "create the tasks together (asyncio.gather)"),
        (Crew(), policy("3"), "exceeded 2 spawned agents (marl.rollout.episode_agents)"),
        (Crew(), ScriptedPolicy({"planner": "3", "workers": ""}), "no agent 'worker': did you mean 'workers'?"),
        (Other(), policy("3"), "unknown policy 'planer': did you mean 'planner'?"),
    ):
        context = ScriptedContext(
            workflow, Task("q", "planer"), script, delay=lambda act, _: 9 * ("#" in act.agent), limits=Limits(spawned=2)
        )
        (failure,) = asyncio.run(Independent(episodes=1).sample(context)).failures
        assert message in failure.detail


def test_a_spawned_agent_acts_with_the_policy_that_it_names() -> None:
    sample = asyncio.run(Independent(episodes=1).sample(ScriptedContext(Other(), Task("q", "planner"), policy("3"))))
    assert [(turn.agent, turn.policy) for turn in sample.turns] == [("worker#1", "planner")]
    agents = {"worker": AgentConfig("worker", "small", "Be brief."), "planner": AgentConfig("judge", "planner")}
    assert acting(agents, sample.turns[0].act) == replace(agents["worker"], policy="planner")


class Large:
    """A client that takes no request."""

    def too_long(self, messages: Any, tools: Any) -> str:
        return " ".join(message["content"] for message in messages)


class Clients(Workflow):
    async def run(self, task: Task, team: Team) -> str:
        worker = team.spawn("worker", "Part 1.", policy="large")
        try:
            team.effects.check_length(worker.name, as_observation("go"), {})
        except ContextLengthExceeded as error:
            await worker.act(str(error))
        return ""


async def test_a_clients_request_is_measured_as_the_spawned_agent_acts() -> None:
    agents = {"worker": AgentConfig("worker", "small", "Be brief."), "planner": AgentConfig("planner", "large")}
    parts: Any = WorkerContext(TaskContext(Clients(), TaskSet(), agents), {"large": Large()}, seed=0)
    async with PolicySamplingContext(parts, TASK, "u", 1, None).start(0) as run:
        (act,) = await run.next() or ()
        assert shown(act) == "Be brief. Part 1. go"


class Workers(TaskSet):
    """The score is the number of workers."""

    def score(self, task: Task, answer: str) -> float:
        return float(answer.split()[0])


def test_groups_and_metrics_are_of_roles_and_rows_name_the_agent() -> None:
    context = ScriptedContext(Crew(), TASK, policy(lambda act, session, candidate: str(1 + session)), Workers())
    sample = asyncio.run(Independent(episodes=4).sample(context))
    table = RowTable.of(sample.turns)
    result = algorithm("grpo", group="agent").compute(table)
    counts = {name: values["rows"] for name, values in agent_statistics(table, result).items()}
    assert counts == {"planner": 4, "worker": 14}
    rows = ExplainedRows({"algorithm": "grpo", "options": {"advantage": {"group": "agent"}}, "rows": table.to_rows()})
    assert [row["agent"] for row in rows] == [turn.agent for turn in sample.turns]
    assert [(row["group"]["agent"], len(row["members"])) for row in rows[:2]] == [("planner", 4), ("worker", 14)]
    stored = decode_episode(json.loads(json.dumps(encode_episode(sample.episodes[-1], tokens=False))))
    assert [turn.agent for turn in stored.turns] == [turn.agent for turn in sample.episodes[-1].turns]


def test_in_a_tree_the_candidates_for_an_act_are_a_group_of_their_own() -> None:
    context = ScriptedContext(Crew(), TASK, policy("2"), Workers())
    table = RowTable.of(asyncio.run(GreedyTree(candidates=3).sample(context)).turns)
    assert [len(algorithm("at-grpo").compute(table).members(row)) for row in range(len(table))] == [3] * 12


@pytest.mark.parametrize("mode", ["regenerate", "rescore", "full"])
@pytest.mark.parametrize(("said", "placeholder", "credit"), [("3", "none", 2.0), ("1", "4", -3.0)])
def test_credit_where_one_of_both_runs_spawns_more(mode: Any, said: str, placeholder: str, credit: float) -> None:
    for kind in (Counterfactual, SampledShapley):
        part = kind(mode=mode, placeholder=placeholder)
        (episode, *_) = check_credit(part, Crew(), TASK, policy(said), Workers())
        workers = {f"worker#{number + 1}": 0.0 for number in range(int(said))}
        assert {turn.agent: turn.rewards["credit"] for turn in episode.turns} == {"planner": credit, **workers}
    (episode, *_) = check_credit(Counterfactual(without=("planner",)), Crew(), TASK, policy(said), Workers())
    assert all(("credit" in turn.rewards) == (turn.role == "worker") for turn in episode.turns)
