"""The testing kit for plugin authors: checks must not pass vacuously. Each breaks in one way what a check looks at."""

import itertools
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from marl_verl_at_grpo.greedy_tree import GreedyTree
from marl_verl_testing import ScriptedPolicy, check_algorithm, check_credit, check_sampler, check_task, check_workflow
from marl_verl_testing.rows import row
from marl_verl_testing.workflows import TASK, Hashed, Programmed, Solo, talkers

from marl_verl.algo.advantage import Advantage, AdvantageResult, FloatArray, RowTable
from marl_verl.algo.credit import ReplayCredit
from marl_verl.algo.sampling import Independent, Sampler, SamplingContext
from marl_verl.episode import Episode, ReplayMismatch, Team, Workflow
from marl_verl.errors import MarlError
from marl_verl.tasks import Split, Task, TaskSet

TWO = talkers(0, ("solver", "verifier"))


RELAY, ALONE, NEVER = Programmed((Solo("solver"), Solo("verifier"))), Programmed((Solo("solver"),)), Programmed()


class Unsteady(Workflow):
    """A workflow in which `change` differs from run to run."""

    change: str = ""
    steady_runs: int = 1

    async def run(self, task: Task, team: Team) -> Any:
        number = max(next(self.__dict__.setdefault("runs", itertools.count())) + 1 - self.steady_runs, 0)
        draft = await team["solver"].act(f"{task.prompt} {number if self.change == 'observation' else ''}")
        if self.change == "invalid" and number:
            team.invalid(draft, "late")
        if self.change == "more" and number:
            await team["solver"].act("more")
        await team["verifier"].act(draft.text)
        return f"{draft.text} {number}" if self.change == "answer" else draft.text


def test_every_agent_must_act() -> None:
    assert len(check_workflow(RELAY, TASK, TWO).turns) == 2
    assert check_workflow(ALONE, TASK, TWO, may_not_act=("verifier",)).finished
    with pytest.raises(AssertionError, match=r"'Programmed' on task 'q1' never lets verifier act: .* may_not_act="):
        check_workflow(ALONE, TASK, TWO)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("observation", "another observation"),
        ("invalid", "invalid marks"),
        ("answer", "first answer .* 0, now answer .* 1"),
        ("more", "act solver:1"),
    ],
)
def test_every_difference_of_a_replay_is_an_error(change: str, message: str) -> None:
    check_workflow(Unsteady(change=change, steady_runs=1000), TASK, TWO)
    with pytest.raises(ReplayMismatch, match=message):
        check_workflow(Unsteady(change=change), TASK, TWO)
    with pytest.raises(ReplayMismatch, match="workflow 'Unsteady' on task 'q1'"):
        check_sampler(Independent(2), Unsteady(change=change), TASK, TWO, tasks=Hashed())


@pytest.mark.parametrize("sampler", [Independent(2), GreedyTree(2)], ids=str)
def test_a_workflow_that_fails_raises_unless_it_may(sampler: Sampler) -> None:
    with pytest.raises(MarlError, match=r"an attempt failed, .* the team has no agent 'verifier': solver|'verifier'"):
        check_sampler(sampler, RELAY, TASK, ScriptedPolicy({"solver": "4"}))
    with pytest.raises((MarlError, AssertionError), match=r"ended without an act|requested no action"):
        check_sampler(sampler, NEVER, TASK, TWO)
    assert not check_sampler(sampler, NEVER, TASK, TWO, may_fail=True).episodes


# The testing kit ends what hangs, and finds what only differs between processes


AGENTS = ("solver", "verifier", "planner", "critic", "writer", "editor", "judge")
POLICY = talkers(0, AGENTS)
ROWS = [row("q", n, 0, 0, "a", team=float(n)) for n in range(3)]


def forever() -> None:
    while True:
        pass


class All(Workflow):
    """Every agent acts, in the order of `order()`, after `begin()`."""

    begin: Any = None
    order: Any = tuple

    async def run(self, task: Task, team: Team) -> Any:
        texts = []
        if self.begin is not None:
            self.begin()
        for agent in self.order(AGENTS):
            texts.append((await team[agent].act(f"{task.prompt} {len(texts)}")).text)
        return texts[-1]


@dataclass(frozen=True)
class Waits(ReplayCredit):
    """Waits for ever."""

    async def assign(self, context: SamplingContext, episode: Episode) -> int:
        time.sleep(1e6)
        return 0


@dataclass(frozen=True)
class SetOrder(Advantage):
    def compute(self, table: RowTable, reward: FloatArray) -> AdvantageResult:
        order = sum(place * AGENTS.index(agent) ** 2 for place, agent in enumerate(set(AGENTS)))
        return super().compute(table, reward * (1.0 + order))


@pytest.mark.parametrize(
    "check",
    [
        lambda: check_workflow(All(begin=threading.Event().wait), TASK, POLICY, seconds=0.1),
        lambda: check_sampler(Independent(), All(begin=forever), TASK, POLICY, seconds=0.1),
        lambda: check_credit(Waits(), All(), TASK, POLICY, seconds=0.1),
    ],
)
def test_what_hangs_is_ended(check: Callable[[], Any]) -> None:
    begun = time.monotonic()
    with pytest.raises(AssertionError, match=r"is not done after 0\.1 s: it hangs \(test_kit\.py, line \d+\)"):
        check()
    assert time.monotonic() - begun < 20
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL


@pytest.mark.parametrize(
    "check",
    [
        lambda: check_workflow(All(order=set), TASK, POLICY),
        lambda: check_sampler(Independent(2), All(order=set), TASK, POLICY),
        lambda: check_algorithm(SetOrder(), ROWS),
    ],
)
def test_the_order_of_a_set_is_caught(check: Callable[[], Any]) -> None:
    """Seven texts have the same order in both processes with a probability of 1/5040."""
    with pytest.raises((AssertionError, ReplayMismatch), match="with another PYTHONHASHSEED, which orders sets"):
        check()


# `check_task`: a task set that keeps its promises passes, and each broken promise is named


COUNTER = itertools.count()


class Numbers(TaskSet):
    """Add one; `wrong` is the promise that it breaks."""

    wrong: str = ""
    calls: list[int] = field(default_factory=list)

    def generate(self, split: Split, count: int, seed: int) -> list[Task]:
        first = 1000 * (split == "test" and self.wrong != "leak") + 100 * seed
        if self.wrong == "again":
            first += next(COUNTER)
        data = {"number": (1, 2)} if self.wrong == "json" else {}
        names = [f"{split if self.wrong == 'leak' else ''}{first + index}" for index in range(count)]
        return [Task(name, str(first + index), data) for index, name in enumerate(names)]

    def score(self, task: Task, answer: Any) -> Any:
        self.calls.append(1)
        return len(self.calls) if self.wrong == "score" else float(answer == str(int(task.prompt) + 1))


def answers(task: Task) -> list[str]:
    return [str(int(task.prompt) + 1), "", "x"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("again", "train tasks asked for again, differs"),
        ("leak", "has a test task in training: "),
        ("json", "is another one after JSON"),
        ("score", "scores 1, and another score|not a number from 0.0 to 1.0"),
    ],
)
def test_each_broken_promise_is_named(wrong: str, message: str) -> None:
    assert len(check_task(Numbers(), answers)) == 8
    with pytest.raises(AssertionError, match=message):
        check_task(Numbers(wrong=wrong), answers)
