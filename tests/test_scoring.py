"""Scores and role rewards of users: a limit ends them whatever they do, and others go on."""

import asyncio
import contextlib
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from marl_verl.algo.sampling import scoring
from marl_verl.algo.sampling.context import judged
from marl_verl.errors import MarlError
from marl_verl.tasks import Task, TaskSet, quick
from tests.forks import in_fork

pytestmark = pytest.mark.slow
TASK = Task("t", "p", {"answer": "4"})
LIMIT = 1.0


async def number(fn: Any, arguments: Any, _: str, seconds: float | None) -> float:
    (value,) = await scoring.scored(fn, [arguments], seconds)
    return float(value)


def number_of(fn: Any, answer: str = "", seconds: float | None = 30.0) -> float:
    return asyncio.run(number(fn, (TASK, answer), "the score", seconds))


def evaluated(task: Task, answer: str) -> float:
    return float(eval(answer, {"__builtins__": None}) % 10)


def spins(task: Task, answer: str) -> float:
    while True:
        try:
            time.sleep(60)
        except BaseException:  # noqa: BLE001 - as programs of users do
            continue


class Evaluated(TaskSet):
    def score(self, task: Task, answer: Any) -> float:
        return evaluated(task, answer)

    def success(self, task: Task, answer: Any) -> bool:
        return bool(evaluated(task, answer) == 3.0)


async def beside(work: Any) -> float:
    """The longest pause of the event loop while `work` runs into its limit, and quick scores go on."""
    pauses, done = [0.0], False

    async def beat() -> None:
        before = time.monotonic()
        while not done:
            await asyncio.sleep(0.01)
            now = time.monotonic()
            pauses.append(now - before)
            before = now

    beating, stuck = asyncio.create_task(beat()), asyncio.create_task(work())
    await asyncio.sleep(0)
    assert await number(evaluated, (TASK, "1+2"), "the score", 60.0) == 3.0
    with pytest.raises(TimeoutError, match="longer than 1 s"):
        await stuck
    done = True
    await beating
    return max(pauses)


@pytest.mark.parametrize(
    "work",
    [
        lambda: number(evaluated, (TASK, "9**9**9"), "the score", LIMIT),
        lambda: number(spins, (TASK, ""), "the score", LIMIT),
        lambda: judged(Evaluated(), TASK, "9**9**9", LIMIT),
    ],
    ids=["a power", "a loop that catches all", "a task set"],
)
def test_a_limit_ends_what_holds_the_interpreter(work: Any) -> None:
    number_of(evaluated, "1")  # a process is there
    assert asyncio.run(beside(work)) < 30.0, "one power takes minutes"


def test_processes_of_a_score_end_with_it(tmp_path: Path) -> None:
    def starts(task: Task, answer: str) -> float:
        with (tmp_path / "pid").open("w") as file:
            file.write(str(subprocess.Popen(["sleep", "600"]).pid))
        time.sleep(600)
        return 1.0

    with pytest.raises(TimeoutError):
        number_of(starts, "", LIMIT)
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int((tmp_path / "pid").read_text())).wait(timeout=20)


class Unloadable:
    def __reduce__(self) -> Any:
        return float, ("no number",)


def test_a_library_has_a_limit_of_processor_time() -> None:
    assert scoring.call_in_process(time.sleep, 0.5, seconds=0.2) is None
    with pytest.raises(TimeoutError, match="s of processor time"):
        scoring.call_in_process(eval, "9**9**9", seconds=0.2)
    assert scoring.call_in_process(eval, "1 + 1", seconds=30.0) == 2
    with pytest.raises(ZeroDivisionError):
        scoring.call_in_process(eval, "1 / 0", seconds=30.0)
    with pytest.raises(MarlError, match="cannot be loaded in a process of its own"):
        scoring.call_in_process(Unloadable(), seconds=30.0)


def test_a_process_that_does_not_start_is_an_error_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "_POOL", scoring.Workers(1))
    with monkeypatch.context() as broken:
        broken.setattr(scoring.sys, "executable", "/nowhere/python")
        for _ in range(2):
            with pytest.raises(FileNotFoundError):
                number_of(evaluated, "1")
    assert number_of(evaluated, "1") == 1.0


def test_a_function_may_return_a_coroutine() -> None:
    async def answered() -> float:
        await asyncio.sleep(0)
        return float(os.getpid())

    assert number_of(lambda task, answer: answered()) != os.getpid()


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_quick_functions_stay_here() -> None:
    @quick
    def here(task: Task, answer: str) -> float:
        return float(os.getpid())

    class Quick(Evaluated):
        quick = True

        def score(self, task: Task, answer: Any) -> float:
            return float(os.getpid())

    assert number_of(here) == number_of(Quick().score) == os.getpid()
    assert in_fork(number_of, here, "", 5.0) != os.getpid()  # a fork has no thread that waits for calls
    for _ in range(20):  # after the timeout, the call continues in its thread
        with pytest.raises(TimeoutError):
            number_of(here, seconds=0.0)
    assert number_of(lambda task, answer: float(os.getpid())) != os.getpid()
    assert number_of(lambda task, answer: float(os.getpid()), seconds=None) == os.getpid()
