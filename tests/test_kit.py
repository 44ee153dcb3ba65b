"""The testing kit for plugin authors: checks must not pass vacuously. Each breaks in one way what a check looks at."""

from __future__ import annotations

import asyncio
import itertools
import random
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from marl_verl_at_grpo.greedy_tree import GreedyTree
from marl_verl_testing import ScriptedContext, ScriptedPolicy, check_credit, check_sampler, check_workflow
from marl_verl_testing.workflows import TASK, Hashed, Programmed, Solo, own_words, talkers

from marl_verl.algo.credit import ReplayCredit
from marl_verl.algo.rewards import Mix
from marl_verl.algo.sampling import Independent, Sample, Sampler, SamplingContext, ask, attempt, drive
from marl_verl.episode import Action, Episode, Limits, ReplayMismatch, Team, Workflow
from marl_verl.errors import MarlError
from marl_verl.tasks.base import Task

TWO = talkers(0, ("solver", "verifier"))


class Relay(Workflow):
    """The solver, then the verifier, which sees the solver's text."""

    async def run(self, task: Task, team: Team) -> Any:
        draft = await team["solver"].act(task.prompt)
        team.propose(draft.text)
        verdict = await team["verifier"].act(f"{task.prompt} {draft.text}")
        return f"{draft.text} {verdict.text}"


class Alone(Workflow):
    """The verifier never acts."""

    async def run(self, task: Task, team: Team) -> Any:
        return (await team["solver"].act(task.prompt)).text


class Never(Workflow):
    """No agent acts."""

    async def run(self, task: Task, team: Team) -> Any:
        return "an answer"


class Raw(Workflow):
    """An action where a text is wanted."""

    where: str = "answer"

    async def run(self, task: Task, team: Team) -> Any:
        draft = await team["solver"].act(task.prompt)
        if self.where == "proposal":
            team.propose(draft)
            return draft.text
        return {"answer": draft, "list": [draft], "dict": {"drafts": (draft,)}}[
            "answer" if self.where == "answer" else self.where
        ]


class Unsteady(Workflow):
    """A workflow in which `change` differs from run to run."""

    change: str = ""
    steady_runs: int = 1

    async def run(self, task: Task, team: Team) -> Any:
        number = max(next(self.__dict__.setdefault("runs", itertools.count())) + 1 - self.steady_runs, 0)
        draft = await team["solver"].act(f"{task.prompt} {number if self.change == 'observation' else ''}")
        if self.change == "proposal":
            team.propose(f"{draft.text} {number}")
        if self.change == "invalid" and number:
            team.invalid(draft, "late")
        if self.change == "more" and number:
            await team["solver"].act("more")
        if self.change != "fewer" or not number:
            await team["verifier"].act(draft.text)
        return f"{draft.text} {number}" if self.change == "answer" else draft.text


def test_a_good_workflow_passes() -> None:
    run = check_workflow(Relay(), TASK, TWO)
    assert len(run.turns) == 2
    assert check_workflow(Alone(), TASK, TWO, may_not_act=("verifier",)).finished


def test_every_agent_must_act() -> None:
    with pytest.raises(AssertionError, match=r"'Alone' on task 'q1' never lets verifier act: .* may_not_act="):
        check_workflow(Alone(), TASK, TWO)
    with pytest.raises(MarlError, match="unknown scripted agent 'verifer': did you mean 'verifier'"):
        check_workflow(Alone(), TASK, TWO, may_not_act=("verifer",))


@pytest.mark.parametrize("where", ["answer", "list", "dict", "proposal"])
def test_an_action_is_no_answer(where: str) -> None:
    with pytest.raises(AssertionError, match=r"has an Action as answer or proposal"):
        check_workflow(Raw(where=where), TASK, ScriptedPolicy({"solver": "4"}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("observation", "another observation"),
        ("proposal", "first proposals .* 0'], now proposals .* 1']"),
        ("invalid", "invalid marks"),
        ("answer", "first answer .* 0, now answer .* 1"),
        ("fewer", "differs: first act verifier:0"),
        ("more", "act solver:1"),
    ],
)
def test_every_difference_of_a_replay_is_an_error(change: str, message: str) -> None:
    check_workflow(Unsteady(change=change, steady_runs=1000), TASK, TWO)
    with pytest.raises(ReplayMismatch, match=message.replace("]", r"\]")):
        check_workflow(Unsteady(change=change), TASK, TWO)


def test_a_call_that_is_not_deterministic_is_caught() -> None:
    def roll() -> int:
        return random.getrandbits(64)

    class Tool(Workflow):
        async def run(self, task: Task, team: Team) -> Any:
            await team["solver"].act(task.prompt)
            await team.call(roll)
            return "x"

    with pytest.raises(ReplayMismatch, match=r"restarted from 0 records, differs: first .*roll"):
        check_workflow(Tool(), TASK, ScriptedPolicy({"solver": "go"}))


def test_proposals_of_lanes_may_come_in_any_order() -> None:
    class Lanes(Workflow):
        async def run(self, task: Task, team: Team) -> Any:
            async def lane(agent: str) -> str:
                action = await team[agent].act(task.prompt)
                team.propose(action.text)
                return action.text

            return " ".join(await asyncio.gather(lane("solver"), lane("verifier")))

    assert len(check_workflow(Lanes(), TASK, TWO, orders=8).proposals) == 2


@pytest.mark.parametrize("wrong", [{"workflow": Relay}, {"task": {"id": "q"}}, {"policy": {"solver": "4"}}])
def test_arguments_of_another_type(wrong: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"workflow": Relay(), "task": TASK, "policy": TWO, **wrong}
    for check in (check_workflow, partial(check_sampler, Independent()), ScriptedContext):
        with pytest.raises(MarlError, match=r"expected an instance of .*: write "):
            check(**arguments)


def test_a_script_that_gives_no_text() -> None:
    policy = ScriptedPolicy({"solver": lambda act: None, "verifier": "yes"})  # type: ignore[arg-type, return-value]
    with pytest.raises(MarlError, match="the script of agent 'solver' must return a text, got None for act solver:0"):
        check_workflow(Relay(), TASK, policy)


class Mistaken(Sampler):
    """Two independent episodes with one mistake, by name."""

    wrong: str = ""

    async def sample(self, context: SamplingContext) -> Sample:
        if self.wrong == "nothing":
            return Sample()
        sample = await Independent(2).sample(context)
        if self.wrong == "no episodes":
            return Sample()
        if self.wrong == "list":
            return sample.episodes  # type: ignore[return-value]
        if self.wrong == "dropped":
            sample.episodes.pop(1)
        return sample


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("nothing", "the sampler requested no action"),
        ("no episodes", "the sampler requested 4 actions, but its sample has no episode"),
        ("list", "`sample` must return a Sample"),
        ("dropped", "sampled tokens are in no row"),
    ],
)
def test_a_sampler_with_a_mistake(wrong: str, message: str) -> None:
    check_sampler(Mistaken(), Relay(), TASK, TWO)
    with pytest.raises(AssertionError, match=message):
        check_sampler(Mistaken(wrong=wrong), Relay(), TASK, TWO)


class Fragile(Sampler):
    """Two episodes, without `ask` or without `attempt`."""

    forgets: str = ""

    async def sample(self, context: SamplingContext) -> Sample:
        async def play(g: int) -> Episode:
            async with context.start(g) as run:
                await drive(run, lambda act: (context.act if self.forgets == "ask" else asking)(act, g))
                return await context.finish(run, g)

        async def asking(act: Any, g: int) -> Action:
            return await ask(context, act, g)

        sample = Sample()
        for g in range(2):
            done = await (play(g) if self.forgets == "attempt" else attempt(context, g, play(g)))
            (sample.episodes if isinstance(done, Episode) else sample.failures).append(done)  # type: ignore[arg-type]
        return sample


@pytest.mark.parametrize("forgets", ["ask", "attempt"])
def test_a_forgotten_ask_or_attempt(forgets: str) -> None:
    check_sampler(Fragile(), Relay(), TASK, TWO)
    with pytest.raises(AssertionError, match=r"`sample` raised .*: use `ask` for policy requests, in an `attempt`"):
        check_sampler(Fragile(forgets=forgets), Relay(), TASK, TWO)


@pytest.mark.parametrize("sampler", [Independent(2), GreedyTree(2)], ids=str)
def test_a_workflow_that_fails_raises_unless_it_may(sampler: Sampler) -> None:
    with pytest.raises(MarlError, match=r"an attempt failed, .* the team has no agent 'verifier': solver|'verifier'"):
        check_sampler(sampler, Relay(), TASK, ScriptedPolicy({"solver": "4"}))
    with pytest.raises((MarlError, AssertionError), match=r"ended without an act|requested no action"):
        check_sampler(sampler, Never(), TASK, TWO)
    assert not check_sampler(sampler, Never(), TASK, TWO, may_fail=True).episodes


@pytest.mark.parametrize("change", ["observation", "answer", "fewer"])
@pytest.mark.parametrize("sampler", [Independent(2), GreedyTree(2)], ids=str)
def test_a_workflow_that_is_not_deterministic_is_caught(sampler: Sampler, change: str) -> None:
    with pytest.raises(ReplayMismatch, match="workflow 'Unsteady' on task 'q1', "):
        check_sampler(sampler, Unsteady(change=change), TASK, TWO, tasks=Hashed())


@pytest.mark.parametrize("steady_runs", [8, 12, 20])
def test_it_is_caught_in_a_tree_where_it_only_begins(steady_runs: int) -> None:
    workflow = Unsteady(change="observation", steady_runs=steady_runs)
    with pytest.raises((AssertionError, MarlError), match=r"something else|another observation|differs: first"):
        check_sampler(GreedyTree(2), workflow, TASK, TWO, tasks=Hashed())


def test_the_options_of_check_sampler() -> None:
    thrice = Programmed((Solo("solver"), Solo("verifier"), Solo("solver")))
    sample = check_sampler(Independent(), thrice, TASK, TWO, tasks=Hashed())
    assert [turn.team_reward for turn in sample.turns] == [each.score for each in sample.episodes for _ in range(3)]
    with pytest.raises(MarlError, match="exceeded 1 acts"):
        check_sampler(Independent(), Relay(), TASK, TWO, limits=Limits(acts=1))
    role = Mix(role=1.0)
    kept = [
        check_sampler(GreedyTree(4), Relay(), TASK, talkers(4, ("solver", "verifier")), tasks=Hashed(), **options)
        for options in ({"rewards": {"solver": own_words}}, {"rewards": {"solver": own_words}, "mix": role})
    ]
    best = [[turn.node for turn in sample.episodes[0].turns] for sample in kept]
    assert best[0] != best[1]


@dataclass(frozen=True)
class Careless(ReplayCredit):
    """One mistake, by name."""

    wrong: str = ""

    async def assign(self, context: SamplingContext, episode: Episode) -> int:
        for turn in episode.turns:
            turn.rewards[self.component] = 0.0
        if self.wrong == "no return":
            return None  # type: ignore[return-value]
        if self.wrong != "no ask":
            return 0
        async with context.start(episode.session) as run:
            await drive(run, lambda act: context.act(act, episode.session, "again"))
            return sum(len(action.response_ids) for _, action in run.turns)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("no return", "`assign` must return the tokens it sampled, a whole number; it returned None"),
        ("no ask", "a request failed, and credit 'careless' raised SwitchedOff: use `ask` for policy requests"),
    ],
)
def test_a_credit_with_a_mistake(wrong: str, message: str) -> None:
    check_credit(Careless(), Relay(), TASK, TWO)
    with pytest.raises(AssertionError, match=message):
        check_credit(Careless(wrong=wrong), Relay(), TASK, TWO)
