"""What the checks have in common: time limit, a failing policy, and the comparison of results, also with those of a
process with another hash seed, in which sets of texts have another order.

A workflow that iterates over a set behaves in the same way for the whole life of a process, and differently in the next
one: resumed runs and replays would fail. The process is started once, and ends with this one.
"""

import asyncio
import atexit
import functools
import os
import pickle
import subprocess
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import cloudpickle

import marl_verl
from marl_verl import threads
from marl_verl.episode.turn import shared_length
from marl_verl.errors import MarlWarning
from marl_verl.plugins.loading import GROUP

SECONDS = 120.0  # of a check, with its imports
SHOWN = 160  # maximum number of characters of a value in an error
BEFORE = 40  # of which so many come before a difference
ROUNDS = 100  # iterations of the event loop that cancelled tasks may take to end
VARIABLE = "PYTHONHASHSEED"
CODE = "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); from marl_verl_testing.given import serve"
INSTALLED = (
    *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")),
    str(Path(marl_verl.__file__).parent),
)


class SwitchedOff(ConnectionError):
    """The error of a policy request that a check makes fail."""


def must(holds: Any, message: str) -> None:
    """Raise AssertionError with a message unless a condition holds."""
    if not holds:
        raise AssertionError(message)


@contextmanager
def time_limit(label: str, seconds: float) -> Iterator[None]:
    """Raise AssertionError with the line that was running if the block takes longer."""
    try:
        with threads.time_limit(seconds):
            yield
    except threads.TimeUp as up:
        raise AssertionError(f"{label} is not done after {seconds:g} s: it hangs{up}") from up


def same(first: Sequence[str], again: Sequence[str], label: str, error: type[Exception] = AssertionError) -> None:
    """Raise `error` if two results, as lines, differ: with the first difference, from shortly before it."""
    if list(first) == list(again):
        return
    pairs = zip(first, again, strict=False)
    texts = next((pair for pair in pairs if pair[0] != pair[1]), (f"{len(first)} lines", f"{len(again)} lines"))
    begin = max(0, shared_length(*texts) - BEFORE) if max(map(len, texts)) > SHOWN else 0
    before, now = (text[begin : begin + SHOWN] for text in texts)
    raise error(f"{label} differs: first {before}, now {now}")


@contextmanager
def requests_fail(label: str) -> Iterator[None]:
    """Raise AssertionError if the error of a failed request leaves the block, as it is or as the cause of another."""
    try:
        yield
    except Exception as error:
        if not _switched_off(error):
            raise
        message = f"a request failed, and {label} raised {type(error).__name__}"
        raise AssertionError(f"{message}: use `ask` for policy requests, in an `attempt`") from error


def _switched_off(error: BaseException | None) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(map(_switched_off, error.exceptions))
    return error is not None and (isinstance(error, SwitchedOff) or _switched_off(error.__cause__))


async def nothing_left(before: set[asyncio.Task[Any]], when: str) -> None:
    """Raise AssertionError if other tasks than those of `before` go on running."""
    for _ in range(ROUNDS):
        if asyncio.all_tasks() <= before:
            return
        await asyncio.sleep(0)
    left = [task.get_coro() for task in asyncio.all_tasks() - before]
    message = f"{len(left)} tasks are left running {when}: {getattr(left[0], '__qualname__', left[0])}"
    raise AssertionError(f"{message}. Start runs by `async with context.start(...)`")


def same_elsewhere(
    compute: Callable[[], list[str]], mine: list[str], label: str, error: type[Exception] = AssertionError
) -> None:
    """Raise `error` if `compute()` is not `mine` in the other process; MarlWarning where it cannot be sent or fails."""
    process = _process()
    try:
        pickle.dump(_packed(compute), process.stdin)  # type: ignore[arg-type]
        process.stdin.flush()  # type: ignore[union-attr]
        right, theirs = pickle.load(process.stdout)  # type: ignore[arg-type]
    except BaseException as failure:
        process.kill()  # it may still be computing
        process.communicate()
        _process.cache_clear()
        if not isinstance(failure, Exception):
            raise
        right, theirs = False, str(failure)
    if right:
        seed = "with another PYTHONHASHSEED, which orders sets (sort what is read from one),"
        same(mine, theirs, f"{label} {seed}", error)
    else:
        why = "is not checked with another hash seed, which changes the order of sets"
        warnings.warn(f"{label} {why}: {theirs}", MarlWarning, stacklevel=3)


def serve() -> None:
    """Answer requests from standard input until it is closed; runs in the other process."""
    reply = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the user's code prints
    while True:
        try:
            payload = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            result = True, cloudpickle.loads(payload)()
        except BaseException as error:  # noqa: BLE001  whatever the user's code raises
            result = False, f"{type(error).__name__}: {error}"
        pickle.dump(result, reply)
        reply.flush()


def _packed(compute: Callable[[], list[str]]) -> bytes:
    """The computation with the code of modules that are not installed, since importing a test module may be slow."""
    known = _plugins() | cloudpickle.list_registry_pickle_by_value()
    local = [
        module
        for name, module in list(sys.modules.items())
        if (file := getattr(module, "__file__", None)) and not file.startswith(INSTALLED)
        if getattr(module, "__name__", None) == name and not {name, name.partition(".")[0]} & known
    ]
    for module in local:
        cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(compute))
    finally:
        for module in local:
            cloudpickle.unregister_pickle_by_value(module)


@functools.cache
def _plugins() -> set[str]:
    """The packages of installed plugins, which may be editable."""
    return {point.value.partition(":")[0].partition(".")[0] for point in entry_points(group=GROUP)}


@functools.cache
def _process() -> subprocess.Popen[bytes]:
    environment = {**os.environ, VARIABLE: "2" if os.environ.get(VARIABLE) == "1" else "1"}
    command = [sys.executable, "-c", f"{CODE}; serve()"]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    pickle.dump(sys.path, process.stdin)  # type: ignore[arg-type]
    atexit.register(process.kill)
    return process
