"""From a finished run to rows: rewards, where the team reward counts, invalid actions, and metrics of each agent."""

import asyncio
import time
from typing import Any, ClassVar

import pytest
from marl_verl_at_grpo.algorithm import AlphaMix
from marl_verl_testing import ScriptedPolicy, check_workflow
from marl_verl_testing.algorithm import row_of

from marl_verl.algo.advantage import RowTable
from marl_verl.algo.sampling import Independent, drive
from marl_verl.algo.sampling.context import TaskContext, measured
from marl_verl.backend.rollout.context import PolicySamplingContext, WorkerContext
from marl_verl.episode import Action, Workflow
from marl_verl.tasks import Task
from marl_verl.team import AgentConfig
from marl_verl.trainer.metrics import agent_statistics
from tests.batches import algorithm
from tests.chat_client import Always

TASK = Task("t", "2 + 2", {})


class Rounds(Workflow):
    """The solver speaks in every round, the checker in all but the last."""

    rounds: int = 3

    async def run(self, task: Task, team: Any) -> str:
        for n in range(self.rounds):
            action = await team["solver"].act(f"{task.prompt} {n % 2}")
            if action.text == "?":
                team.invalid(action, "no number")
            if n < self.rounds - 1:
                await team["checker"].act(action.text)
        return str(action.text)


def episode(says: Any = "4") -> Any:
    agents = {name: AgentConfig(name, "p") for name in ("solver", "checker")}
    parts = WorkerContext(TaskContext(Rounds(), Always(), agents), {}, seed=0)
    policy = ScriptedPolicy({"solver": says, "checker": "go on"})

    async def sample() -> Any:
        context = PolicySamplingContext(parts, TASK, "u", step=1, held_out=None)
        async with context.start(0) as run:

            async def answer(act: Any) -> Action:
                return policy.act(act)

            await drive(run, answer)
        return await context.finish(run, 0)

    return asyncio.run(sample())


@pytest.mark.parametrize(
    ("method", "team"),
    [
        (algorithm("grpo"), [1, 1, 1, 1, 1]),
        (algorithm("gigpo"), [1, 1, 1, 1, 1]),
        (algorithm("magrpo-sessions"), [0, 0, 0, 0, 1]),  # solver 0, checker 0, solver 1, checker 1, solver 2
        (algorithm("grpo", returns="discounted"), [0, 0, 0, 1, 1]),
        (algorithm("ippo"), [0, 0, 0, 1, 1]),
    ],
)
def test_the_return_decides_on_which_rows_the_team_reward_counts(method: Any, team: list[int]) -> None:
    rows = [row_of(turn) for turn in episode().turns]
    assert all("team" not in each["rewards"] and each["team_reward"] == 1.0 for each in rows)
    assert method.placed(RowTable.from_rows(rows)).rewards["team"].tolist() == team
    shuffled = method.placed(RowTable.from_rows(rows[::-1]))
    assert shuffled.rewards["team"].tolist() == team[::-1]
    assert RowTable.from_rows(shuffled.to_rows()).rewards["team"].tolist() == team[::-1]  # as a step is stored


def test_an_action_of_no_use_is_a_mark_on_its_row() -> None:
    done = episode(says=["4", "?", "4"])
    assert [turn.invalid for turn in done.turns] == [None, None, "no number", None, None]
    rows = [row_of(turn) for turn in done.turns]
    assert [r["invalid"] for r in rows] == [False, False, True, False, False]
    table = RowTable.from_rows(rows)
    found = agent_statistics(table, algorithm("dr-mas").compute(table))
    assert (found["solver"]["invalid"], found["checker"]["invalid"]) == (pytest.approx(1 / 3), 0.0)
    assert check_workflow(Rounds(), TASK, ScriptedPolicy({"solver": "?", "checker": ""})).invalid == {
        ("solver", str(n)): "no number" for n in range(3)
    }


async def test_the_value_of_one_agents_turn_needs_no_other_agent_beside_it() -> None:
    agents = {"solver": AgentConfig("solver", "p", reward="long"), "checker": AgentConfig("checker", "p")}
    mix = AlphaMix(alpha=0.5)
    task_context = TaskContext(Rounds(), Always(), agents, {"long": lambda task, turn, episode: 3.0}, mix=mix)

    context = PolicySamplingContext(WorkerContext(task_context, {}, seed=0), TASK, "u", 1, None)
    async with context.start(0) as run:
        await drive(run, lambda act: _answer("4"))
        done = await context.finish(run, 0)
    assert [context.value([turn])[0] for turn in done.turns[:2]] + context.value(done.turns[:2]) == [3.5, 0.5, 3.5, 0.5]


@pytest.mark.parametrize("gives", [float("nan"), None, "much"])
def test_a_role_reward_that_is_no_number_is_a_failure_of_its_session(gives: Any) -> None:
    agents = {"solver": AgentConfig("solver", "p", reward="odd"), "checker": AgentConfig("checker", "p")}

    async def odd(task: Task, turn: Any, episode: Any) -> Any:
        return gives if episode.session == 1 else 0.5

    parts = WorkerContext(TaskContext(Rounds(), Always(), agents, {"odd": odd}), {"p": Recorder()}, seed=0)
    found = asyncio.run(Independent(3).sample(PolicySamplingContext(parts, TASK, "u", 1, None)))
    assert [episode.session for episode in found.episodes] == [0, 2]
    (failure,) = found.failures
    assert (failure.session, failure.reason) == (1, "score-error")
    assert "workflow 'Rounds' on task 't', scoring: role reward 'odd' of agent 'solver' must be" in failure.detail


class Measured(Always):
    def measures(self, task: Task, answer: Any) -> Any:
        time.sleep(0.3)
        return {"length": len(answer)}


def test_others_go_on_while_an_answer_is_measured_within_its_limit() -> None:
    async def ticks() -> int:
        count = 0
        work = asyncio.gather(*(measured(Measured(), done, 20.0) for _ in range(2)))
        while not work.done():
            await asyncio.sleep(0.01)
            count += 1
        assert work.result() == [{"length": 1.0}] * 2
        with pytest.raises(TimeoutError, match=r"longer than 0\.1 s"):
            await measured(Measured(), done, 0.1)
        return count

    done = episode()
    assert asyncio.run(ticks()) > 4


async def _answer(text: str) -> Action:
    return Action(text)


class Recorder:
    """A policy's client that records its requests."""

    sampling: ClassVar = {"temperature": 1.0}

    def __init__(self) -> None:
        self.asked: list[tuple[str, int | None]] = []

    async def answer(self, messages: Any, sampling: Any, request_id: str, *more: Any) -> Action:
        self.asked.append((request_id, sampling.get("seed")))
        return Action("4", [1], [2], [-1.0])


def requests(seed: int = 0, step: int = 1) -> list[tuple[str, int | None]]:
    """What two sessions ask for, and a second candidate for each act."""
    client = Recorder()
    agents = {name: AgentConfig(name, "p") for name in ("solver", "checker")}
    parts = WorkerContext(TaskContext(Rounds(), Always(), agents), {"p": client}, seed)

    async def ask() -> None:
        context = PolicySamplingContext(parts, TASK, "u", step, held_out=None)
        for session in range(2):
            async with context.start(session) as run:

                async def answer(act: Any, session: int = session) -> Action:
                    await context.act(act, session, "other")
                    await context.act(act, session, agent="checker")
                    return await context.act(act, session)

                await drive(run, answer)

    asyncio.run(ask())
    return client.asked


def test_every_request_has_its_own_seed_and_the_same_in_every_run() -> None:
    asked = requests()
    assert asked == requests()
    seeds = [seed for _, seed in asked]
    # five acts a session, asked three times each; in the checker's two acts it does not take another agent's
    assert (len(seeds), len(set(seeds))) == (2 * 5 * 3, 2 * (5 * 3 - 2))
    assert set(seeds).isdisjoint(seed for _, seed in requests(seed=1))
    assert set(seeds).isdisjoint(seed for _, seed in requests(step=2))


def test_all_requests_of_a_session_name_it_so_that_they_stay_on_one_server() -> None:
    assert {name for name, _ in requests()} == {"u-0", "u-1"}
