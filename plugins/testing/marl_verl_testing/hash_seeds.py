"""Repeat a computation in a process with another hash seed, in which sets of texts have another order.

A workflow that iterates over a set behaves in the same way for the whole life of a process, and differently in the next
one: resumed runs and replays would fail. The process is started once, and ends with this one.
"""

import atexit
import functools
import os
import pickle
import subprocess
import sys
import sysconfig
import warnings
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import cloudpickle

import marl_verl
from marl_verl.errors import MarlWarning
from marl_verl.plugins.loading import GROUP

VARIABLE = "PYTHONHASHSEED"
CODE = "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); from marl_verl_testing.hash_seeds import serve"
INSTALLED = (
    *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")),
    str(Path(marl_verl.__file__).parent),
)


def elsewhere(compute: Callable[[], list[str]], label: str) -> list[str] | None:
    """The result of `compute` in the other process; None, with a MarlWarning, where it cannot be sent or fails."""
    process = _process()
    try:
        pickle.dump(_packed(compute), process.stdin)  # type: ignore[arg-type]
        process.stdin.flush()  # type: ignore[union-attr]
        right, reply = pickle.load(process.stdout)  # type: ignore[arg-type]
    except BaseException as error:
        process.kill()  # it may still be computing
        process.communicate()
        _process.cache_clear()
        if not isinstance(error, Exception):
            raise
        right, reply = False, str(error)
    if not right:
        why = "is not checked with another hash seed, which changes the order of sets"
        warnings.warn(f"{label} {why}: {reply}", MarlWarning, stacklevel=4)
    return reply if right else None


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
