"""The testing kit ends what hangs, and finds what only differs between processes; its errors show both values."""

from __future__ import annotations

import asyncio
import random
import re
import signal
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from marl_verl_at_grpo.greedy_tree import GreedyTree

from marl_verl.algo.advantage import Advantage, AdvantageResult, FloatArray, RowTable
from marl_verl.algo.credit import ReplayCredit
from marl_verl.algo.sampling import Independent, Sample, SamplingContext
from marl_verl.episode import Episode, ReplayMismatch, Team, Workflow
from marl_verl.errors import MarlWarning
from marl_verl.tasks.base import Task
from marl_verl.testing import ScriptedPolicy, check_algorithm, check_credit, check_sampler, check_workflow
from marl_verl.testing.sampler import UNBRANCHED
from marl_verl.testing.workflows import TASK, talkers

AGENTS = ("solver", "verifier", "planner", "critic")
POLICY = talkers(0, AGENTS)
ROWS = [
    {"uid": "q", "session": n, "index": 0, "turn": 0, "agent": "a", "rewards": {"team": float(n)}, "length": 3}
    for n in range(3)
]


def forever() -> None:
    while True:
        pass


def stubborn() -> None:
    """Catches what a library may catch."""
    while True:
        try:
            forever()
        except Exception:  # noqa: BLE001
            continue


class All(Workflow):
    """Every agent acts, in the order of `order()`, after `begin()`."""

    begin: Any = None
    order: Any = tuple

    async def run(self, task: Task, team: Team) -> Any:
        texts = []
        if self.begin is not None and asyncio.iscoroutine(found := self.begin()):
            await found
        for agent in self.order(AGENTS):
            texts.append((await team[agent].act(f"{task.prompt} {len(texts)}")).text)
        return texts[-1]


class Slow(Independent):
    async def sample(self, context: SamplingContext) -> Sample:
        forever()
        return Sample()


@dataclass(frozen=True)
class Marked(ReplayCredit):
    """Numbers the turns in the order of `order`, after `begin()`."""

    begin: Any = None
    order: Any = tuple

    async def assign(self, context: SamplingContext, episode: Episode) -> int:
        if self.begin is not None:
            self.begin()
        for number, agent in enumerate(self.order(AGENTS)):
            for turn in episode.turns:
                if turn.agent == agent:
                    turn.rewards[self.component] = float(number)
        return 0


@dataclass(frozen=True)
class Endless(Advantage):
    def compute(self, table: RowTable, reward: FloatArray) -> AdvantageResult:
        forever()
        return super().compute(table, reward)


@dataclass(frozen=True)
class SetOrder(Advantage):
    def compute(self, table: RowTable, reward: FloatArray) -> AdvantageResult:
        first = AGENTS.index(next(iter(set(AGENTS))))
        return super().compute(table, reward * (1.0 + first))


def replies(reply: Callable[..., str]) -> ScriptedPolicy:
    return ScriptedPolicy(dict.fromkeys(AGENTS, reply))


@pytest.mark.parametrize(
    "check",
    [
        lambda: check_workflow(All(begin=forever), TASK, POLICY, seconds=0.1),
        lambda: check_workflow(All(begin=stubborn), TASK, POLICY, seconds=0.1),
        lambda: check_workflow(All(begin=lambda: asyncio.sleep(1e6)), TASK, POLICY, seconds=0.1),
        lambda: check_workflow(All(begin=lambda: time.sleep(1e6)), TASK, POLICY, seconds=0.1),
        lambda: check_workflow(All(begin=threading.Event().wait), TASK, POLICY, seconds=0.1),
        lambda: check_workflow(All(), TASK, replies(lambda act: forever() or ""), seconds=0.1),
        lambda: check_sampler(Slow(), All(), TASK, POLICY, seconds=0.1),
        lambda: check_sampler(Independent(), All(begin=forever), TASK, POLICY, seconds=0.1),
        lambda: check_credit(Marked(begin=lambda: time.sleep(1e6)), All(), TASK, POLICY, seconds=0.1),
        lambda: check_algorithm(Endless(), ROWS, seconds=0.1),
    ],
)
def test_what_hangs_is_ended(check: Callable[[], Any]) -> None:
    begun = time.monotonic()
    message = r"is not done after 0\.1 s: it hangs \(test_kit_limits\.py, line \d+\)"
    with pytest.raises(AssertionError, match=message):
        check()
    assert time.monotonic() - begun < 20
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL


def test_the_limit_of_a_caller_is_kept() -> None:
    rung: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: rung.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 1000.0)
        check_algorithm(Advantage(), ROWS)
        assert 900 < signal.getitimer(signal.ITIMER_REAL)[0] <= 1000
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_check_works_in_another_thread() -> None:
    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.append(check_workflow(All(), TASK, POLICY)))
    thread.start()
    thread.join(60)
    assert done[0].finished


def test_a_loop_in_another_thread_is_ended() -> None:
    """As in a notebook, whose main thread runs an event loop."""
    errors: list[BaseException] = []

    def check() -> None:
        try:
            check_workflow(All(begin=forever), TASK, POLICY, seconds=0.2)
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    thread = threading.Thread(target=check, daemon=True)
    thread.start()
    thread.join(30)
    assert re.search(r"not done after 0\.2 s: it hangs \(test_kit_limits\.py, line \d+\)", str(errors[0]))


def test_task_groups_of_anyio_end_in_a_workflow() -> None:
    """anyio reads the state of a task's coroutine when it cancels."""
    anyio = pytest.importorskip("anyio")

    class Cancels(Workflow):
        async def run(self, task: Task, team: Team) -> Any:
            action = await team["solver"].act(task.prompt)
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.sleep, 1000)
                group.cancel_scope.cancel()
            return action.text

    assert check_workflow(Cancels(), TASK, ScriptedPolicy({"solver": "go"}), seconds=20).finished


# Hash seeds


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: check_workflow(All(order=set), TASK, POLICY), "which orders sets: different effect: first act "),
        (lambda: check_sampler(Independent(2), All(order=set), TASK, POLICY), "with PYTHONHASHSEED=.: first .*, now "),
        (lambda: check_credit(Marked(order=set), All(), TASK, POLICY), "credit 'marked' differs with PYTHONHASHSEED="),
        (lambda: check_algorithm(SetOrder(), ROWS), r"`SetOrder\.compute` .* differs with PYTHONHASHSEED=.: first row"),
        (
            lambda: check_workflow(All(order=lambda them: sorted(them, key=hash)), TASK, POLICY),
            "which orders sets: different effect: first act ",
        ),
    ],
)
def test_the_order_of_a_set_is_caught(check: Callable[[], Any], message: str) -> None:
    """Four texts have the same order in all three processes with a probability of 1/576."""
    with pytest.raises((AssertionError, ReplayMismatch), match=message):
        check()


def test_a_sorted_set_passes_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        workflow = All(order=lambda them: sorted(set(them)))
        check_workflow(workflow, TASK, POLICY)
        check_sampler(Independent(2), workflow, TASK, POLICY)
        check_credit(Marked(order=lambda them: sorted(set(them))), workflow, TASK, POLICY)
        check_algorithm(Advantage(), ROWS)


def test_what_cannot_be_sent_is_a_warning() -> None:
    lock = threading.Lock()

    def reply(act: Any) -> str:
        with lock:
            return "yes"

    with pytest.warns(MarlWarning, match="'All' on task 'q1' is not checked with other hash seeds, .* cannot pickle"):
        check_workflow(All(), TASK, replies(reply))


# Both values


def test_both_results_of_a_call_are_shown() -> None:
    class Tool(Workflow):
        async def run(self, task: Task, team: Team) -> Any:
            await team["solver"].act(task.prompt)
            return await team.call(roll)

    def roll() -> int:
        return random.getrandbits(64)

    with pytest.raises(ReplayMismatch, match=r"call .*roll\(\) has another result: first \d+, now \d+\. Make "):
        check_workflow(Tool(), TASK, ScriptedPolicy({"solver": "go"}))


def test_the_difference_of_long_values_is_shown() -> None:
    class Answers(Workflow):
        async def run(self, task: Task, team: Team) -> Any:
            await team["solver"].act(task.prompt)
            return "x" * 5000 + str(random.getrandbits(64)) + "y" * 5000

    with pytest.raises(ReplayMismatch) as error:
        check_workflow(Answers(), TASK, ScriptedPolicy({"solver": "go"}))
    one, two = re.findall(r"x{30,}(\d+)y", str(error.value))
    assert one != two
    assert len(str(error.value)) < 600


def test_results_that_differ_only_by_identity_are_named() -> None:
    class Odd:
        def __repr__(self) -> str:
            return "Odd()"

    class Answers(Workflow):
        async def run(self, task: Task, team: Team) -> Any:
            await team["solver"].act(task.prompt)
            return Odd()

    with pytest.raises(ReplayMismatch, match=r"first Odd\(\), now another object of the same repr"):
        check_workflow(Answers(), TASK, ScriptedPolicy({"solver": "go"}))


# Branching


@pytest.mark.parametrize(("candidates", "said"), [(1, True), (2, False)])
def test_a_sample_without_branching_is_said(candidates: int, said: bool) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        check_sampler(GreedyTree(candidates), All(), TASK, POLICY)
    messages = [str(each.message) for each in found if each.category is MarlWarning]
    assert messages == [f"check_sampler of GreedyTree {UNBRANCHED}"] * said
