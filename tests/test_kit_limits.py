"""The testing kit ends what hangs, and finds what only differs between processes."""

from __future__ import annotations

import asyncio
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
from marl_verl_testing import ScriptedPolicy, check_algorithm, check_credit, check_sampler, check_workflow
from marl_verl_testing.sampler import UNBRANCHED
from marl_verl_testing.workflows import TASK, talkers

from marl_verl.algo.advantage import Advantage, AdvantageResult, FloatArray, RowTable
from marl_verl.algo.credit import ReplayCredit
from marl_verl.algo.sampling import Independent, SamplingContext
from marl_verl.episode import Episode, ReplayMismatch, Team, Workflow
from marl_verl.errors import MarlWarning
from marl_verl.tasks.base import Task

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
        if self.begin is not None and asyncio.iscoroutine(waiting := self.begin()):
            await waiting
        for agent in self.order(AGENTS):
            texts.append((await team[agent].act(f"{task.prompt} {len(texts)}")).text)
        return texts[-1]


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
        lambda: check_workflow(All(begin=threading.Event().wait), TASK, POLICY, seconds=0.1),
        lambda: check_sampler(Independent(), All(begin=forever), TASK, POLICY, seconds=0.1),
        lambda: check_credit(Marked(begin=lambda: time.sleep(1e6)), All(), TASK, POLICY, seconds=0.1),
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
    "check",
    [
        lambda: check_workflow(All(order=set), TASK, POLICY),
        lambda: check_workflow(All(order=lambda agents: sorted(agents, key=hash)), TASK, POLICY),
        lambda: check_sampler(Independent(2), All(order=set), TASK, POLICY),
        lambda: check_credit(Marked(order=set), All(), TASK, POLICY),
        lambda: check_algorithm(SetOrder(), ROWS),
    ],
)
def test_the_order_of_a_set_is_caught(check: Callable[[], Any]) -> None:
    """Four texts have the same order in all three processes with a probability of 1/576."""
    with pytest.raises((AssertionError, ReplayMismatch), match=r"with PYTHONHASHSEED=., which orders sets"):
        check()


def test_a_sorted_set_passes_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        workflow = All(order=lambda agents: sorted(set(agents)))
        check_workflow(workflow, TASK, POLICY)
        check_sampler(Independent(2), workflow, TASK, POLICY)
        check_credit(Marked(order=lambda agents: sorted(set(agents))), workflow, TASK, POLICY)
        check_algorithm(Advantage(), ROWS)


def test_what_cannot_be_sent_is_a_warning() -> None:
    lock = threading.Lock()

    def reply(act: Any) -> str:
        with lock:
            return "yes"

    with pytest.warns(MarlWarning, match="'All' on task 'q1' is not checked with other hash seeds, .* cannot pickle"):
        check_workflow(All(), TASK, replies(reply))


# Branching


@pytest.mark.parametrize(("candidates", "said"), [(1, True), (2, False)])
def test_a_sample_without_branching_is_said(candidates: int, said: bool) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_sampler(GreedyTree(candidates), All(), TASK, POLICY)
    messages = [str(warning.message) for warning in caught if warning.category is MarlWarning]
    assert messages == [f"check_sampler of GreedyTree {UNBRANCHED}"] * said
