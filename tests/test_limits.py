"""Limits of one episode: errors that end it, and no effect on other runs."""

import asyncio
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from marl_verl_testing import ScriptedContext, ScriptedPolicy

from marl_verl.algo.sampling import Independent, Sample
from marl_verl.episode import CallError, Journal, Run, Team, Workflow, WorkflowError, replay
from marl_verl.episode.codec import decode_journal, encode_journal
from marl_verl.episode.errors import Limits
from marl_verl.tasks import Task
from tests.loops import completed
from tests.plain_workflows import Body, Plain, drive

TASK = Task("t1", "question")
POLICY = ScriptedPolicy({"solver": "12345", "judge": "123"})


class Long(Workflow):
    """Acts periodically; other runs in the same loop must not delay it."""

    acts: int = 20

    async def run(self, task: Task, team: Team) -> str:
        for _ in range(self.acts):
            action = await team["solver"].act("x")
        return action.text


def finished(fn: Body, journal: Journal | None = None, **limits: Any) -> Run:
    return drive(Run(Plain(fn), TASK, POLICY.agents, journal, limits=Limits(**limits)), policy=POLICY)


def sampled(*workflows: Workflow, episodes: int = 2, **limits: Any) -> list[Sample]:
    """One sample a workflow, all side by side in one loop."""

    async def go() -> list[Sample]:
        all_ = [ScriptedContext(workflow, TASK, POLICY, limits=Limits(**limits)) for workflow in workflows]
        return await asyncio.gather(*(Independent(episodes).sample(context) for context in all_))

    return completed(go(), ticks=3)


async def for_ever_stubborn(task: Task, team: Team) -> None:
    while True:
        try:
            await team["solver"].act("x")
        except Exception:  # noqa: BLE001
            continue


async def for_ever_calling(task: Task, team: Team) -> None:
    while True:
        try:
            await team.call(len, "x")
        except Exception:  # noqa: BLE001
            continue


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (for_ever_stubborn, "at act solver:9: exceeded 10 acts; the workflow may not terminate"),
        (for_ever_calling, 'at call builtins:len("x"): exceeded 5 calls; the workflow may not terminate'),
    ],
)
def test_a_workflow_that_never_ends_raises_even_if_it_catches_every_error(fn: Body, message: str) -> None:
    with pytest.raises(WorkflowError, match=f"workflow 'Plain' on task 't1', {re.escape(message)}"):
        finished(fn, acts=10, calls=5)


def test_tokens_are_counted_over_all_agents_and_reported() -> None:
    async def work(task: Task, team: Team) -> str:
        while True:
            await team["solver"].act("x")
            await team["judge"].act("x")

    (found,) = sampled(Plain(work), tokens=20)
    assert [failure.reason for failure in found.failures] == ["token-budget"] * 2
    assert found.failures[0].detail == (
        "workflow 'Plain' on task 't1', at act judge:2: 21 tokens are sampled; the limit of an episode is 20"
    )


def slow(seconds: float) -> str:
    SLOW.append(seconds)
    time.sleep(seconds)
    return "slept"


async def slow_async(seconds: float) -> str:
    SLOW.append(seconds)
    await asyncio.sleep(seconds)
    return "slept"


SLOW: list[float] = []


@pytest.mark.parametrize(("tool", "seconds"), [(slow, 0.3), (slow_async, 1000.0)])
def test_a_call_that_takes_too_long_raises_live_and_on_replay(tool: Callable[[float], Any], seconds: float) -> None:
    async def work(task: Task, team: Team) -> str:
        try:
            result = await team.call(tool, seconds)
        except CallError as error:
            result = f"too long: {error}"
        return (await team["solver"].act(str(result))).text + str(result)

    SLOW.clear()
    run = finished(work, call_seconds=0.05)
    assert run.answer == "12345too long: it took longer than 0.05 s"
    journal = decode_journal(encode_journal(run.journal))
    (call,) = journal.calls()
    assert call.raised is not None
    assert call.raised.kind == "TimeoutError"
    assert finished(work, journal, call_seconds=0.05).answer == run.answer
    assert asyncio.run(replay(Plain(work), TASK, POLICY.agents, journal)).answer == run.answer
    assert len(SLOW) == 1  # the replays made no call


def test_slow_calls_block_no_other_run() -> None:
    """Ten plain functions that wait for each other: none comes back before all ten run."""
    barrier = threading.Barrier(10)

    def meets() -> str:
        barrier.wait(30)
        return "met"

    async def work(task: Task, team: Team) -> str:
        await team["solver"].act("x")
        return str(await team.call(meets))

    (found,) = sampled(Plain(work), episodes=10, call_seconds=60)
    assert [episode.answer for episode in found.episodes] == ["met"] * 10


def exits() -> None:
    sys.exit("usage: tool FILE")


def stops() -> None:
    raise StopIteration("no more")


async def exits_async() -> None:
    sys.exit("usage: tool FILE")


@pytest.mark.parametrize("seconds", [None, 5.0])
@pytest.mark.parametrize("tool", [exits, stops, exits_async])
def test_a_call_cannot_end_the_process(tool: Callable[[], Any], seconds: float) -> None:
    """A tool that uses argparse may call sys.exit, which in an event loop would end the whole process."""

    async def work(task: Task, team: Team) -> str:
        try:
            await team.call(tool)
        except CallError as error:
            return (await team["solver"].act(str(error))).text + f" {error}"
        return "no error"

    run = finished(work, call_seconds=seconds)
    assert re.fullmatch("12345 (SystemExit: usage: tool FILE|StopIteration: no more)", run.answer)
    assert finished(work, run.journal).answer == run.answer


async def waits_for_ever(task: Task, team: Team) -> str:
    await team["solver"].act("x")
    await asyncio.sleep(10**6)
    return "end"


async def waits_for_ever_beside(task: Task, team: Team) -> str:
    async def lane() -> None:
        await team["judge"].act("y")
        await asyncio.Event().wait()

    async with asyncio.TaskGroup() as group:
        group.create_task(lane())
        group.create_task(asyncio.sleep(10**6))
    return "end"


async def gives_way_for_ever(task: Task, team: Team) -> str:
    while True:
        await asyncio.sleep(0)


@pytest.mark.parametrize("fn", [waits_for_ever, waits_for_ever_beside, gives_way_for_ever])
def test_a_workflow_that_waits_for_ever_ends_with_its_time_and_leaves_nothing(fn: Body) -> None:
    waiting, good = sampled(Plain(fn), Long(), episode_seconds=0.5)
    assert [failure.reason for failure in waiting.failures] == ["timeout"] * 2
    assert waiting.failures[0].detail == "workflow 'Plain' on task 't1': the episode took longer than 0.5 s"
    assert len(good.episodes) == 2


def test_a_process_whose_loop_is_blocked_ends_with_the_line(tmp_path: Path) -> None:
    code = """
import asyncio
from slow import sleep_always
from types import SimpleNamespace
from marl_verl.backend.rollout.blocked import end_if_blocked, end_process
async def work():
    limits = SimpleNamespace(step_seconds=1.0, call_seconds=1.0)
    end_if_blocked(asyncio.get_running_loop(), limits, end_process)
    for _ in range(15):
        await asyncio.sleep(0.1)  # longer than the limit, in pieces
    print("pieces", flush=True)
    sleep_always()
asyncio.run(work())
"""
    library = "import time\ndef sleep_always():\n  while True:\n    try: time.sleep(.1)\n    except BaseException: pass"
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "slow.py").write_text(library)
    (tmp_path / "endless.py").write_text(code)
    variables = {**os.environ, "MARL_VERL_SCRATCH": str(tmp_path)}
    variables["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), str(tmp_path / "site-packages")])
    command = [sys.executable, str(tmp_path / "endless.py")]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (1, "pieces\n")
    assert "endless.py" in done.stderr  # the stack
    message = r"a workflow ran 1 s between two effects \(endless.py, line 12\)"
    assert re.match(message, (tmp_path / "blocked").read_text())
