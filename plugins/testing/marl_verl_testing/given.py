"""What the checks have in common: time limit, and the comparison of results, also with those of a
process with another hash seed, in which sets of texts have another order: resumed runs and replays would fail there.
"""

import asyncio
import functools
import os
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Any

import cloudpickle

import marl_verl
from marl_verl import threads
from marl_verl.algo.sampling.scoring import Breakpoint, Workers
from marl_verl.episode.turn import shared_length
from marl_verl.errors import MarlWarning, format_error
from marl_verl.plugins.loading import GROUP

SECONDS = 120.0  # of a check, with its imports
SHOWN = 160  # maximum number of characters of a value in an error
BEFORE = 40  # of which so many come before a difference
ROUNDS = 100  # iterations of the event loop that cancelled tasks may take to end
VARIABLE = "PYTHONHASHSEED"
_ELSEWHERE = Workers(1, {VARIABLE: "2" if os.environ.get(VARIABLE) == "1" else "1"})
INSTALLED = (*map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")), *marl_verl.__path__)


def must(holds: Any, message: str) -> None:
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
    try:
        theirs = _ELSEWHERE.value(_run, _packed(compute), seconds=(SECONDS, 0.0))
    except (Exception, Breakpoint) as failure:  # noqa: BLE001 - whatever the user's code raises
        why = "is not checked with another hash seed, which changes the order of sets"
        warnings.warn(f"{label} {why}: {format_error(failure)}", MarlWarning, stacklevel=3)
    else:
        seed = "with another PYTHONHASHSEED, which orders sets (sort what is read from one),"
        same(mine, theirs, f"{label} {seed}", error)


def _run(computation: bytes) -> Any:
    return cloudpickle.loads(computation)()


def _packed(compute: Callable[[], list[str]]) -> bytes:
    """The computation with the code of modules that are not installed, since importing a test module may be slow."""
    known = _plugins() | cloudpickle.list_registry_pickle_by_value()
    local = [sys.modules[name] for name in list(sys.modules) if _local(name) and not {name, name.split(".")[0]} & known]
    for module in local:
        cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(compute))
    finally:
        for module in local:
            cloudpickle.unregister_pickle_by_value(module)


@functools.cache
def _local(name: str) -> bool:
    """Whether an imported module, under its own name, is not of an installed package."""
    module = sys.modules[name]
    file: Any = getattr(module, "__file__", None)
    return bool(file) and not file.startswith(INSTALLED) and getattr(module, "__name__", None) == name


@functools.cache
def _plugins() -> set[str]:
    """The packages of installed plugins, which may be editable."""
    return {point.value.partition(":")[0].partition(".")[0] for point in entry_points(group=GROUP)}
