"""Repeat a computation in processes with other hash seeds, in which sets of texts have another order.

A workflow that iterates over a set behaves in the same way for the whole life of a process, and differently in the next
one: resumed runs and replays would fail. The processes are started once, and end with this one.
"""

from __future__ import annotations

import atexit
import functools
import os
import pickle
import subprocess
import sys
import sysconfig
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle

from marl_verl.errors import MarlWarning
from marl_verl.plugins import installed

VARIABLE = "PYTHONHASHSEED"
OTHERS = 2  # processes: a set of two texts has the same order in all three with a probability of 1/4
CODE = "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); from marl_verl.testing.hash_seeds import serve"


def elsewhere(compute: Callable[[], Any], what: str) -> list[tuple[str, Any]]:
    """[(setting of a process, the result of `compute` there)] for each process; results must be plain data.

    A computation that cannot be sent, or fails there, is a MarlWarning that begins with `what`.
    """
    try:
        payload = _packed(compute)
    except Exception as error:  # noqa: BLE001  objects of the user, which may hold anything
        return _warned(what, error)
    others = _processes()
    try:
        for _, process in others:
            assert process.stdin is not None
            pickle.dump(payload, process.stdin)
            process.stdin.flush()
        replies = [(setting, pickle.load(process.stdout)) for setting, process in others]  # type: ignore[arg-type]
    except (OSError, EOFError, pickle.PickleError) as error:
        _stop()
        return _warned(what, error)
    except BaseException:  # interrupted: a process may still be computing
        _stop()
        raise
    for _, (right, reply) in replies:
        if not right:
            return _warned(what, reply)
    return [(setting, reply) for setting, (_, reply) in replies]


def _warned(what: str, why: object) -> list[tuple[str, Any]]:
    message = f"{what} is not checked with other hash seeds, which change the order of sets: {why}"
    warnings.warn(message, MarlWarning, stacklevel=4)
    return []


def serve() -> None:
    """Answer requests from standard input until it is closed; runs in the other processes."""
    reply = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the user's code prints
    while True:
        try:
            payload = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(_computed(payload), reply)
        reply.flush()


def _computed(payload: bytes) -> tuple[bool, Any]:
    """(True, the result), or (False, why it failed)."""
    try:
        return True, cloudpickle.loads(payload)()
    except BaseException as error:  # noqa: BLE001  whatever the user's code raises
        return False, f"{type(error).__name__}: {error}"


def _packed(compute: Callable[[], Any]) -> bytes:
    """The computation with the code of modules that are not installed, since importing a test module may be slow."""
    local = [name for name in list(sys.modules) if _is_local(name)]
    known = cloudpickle.list_registry_pickle_by_value()
    mine = [module for name in local if name not in known and (module := sys.modules.get(name)) is not None]
    for module in mine:
        cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(compute))
    finally:
        for module in mine:
            cloudpickle.unregister_pickle_by_value(module)


@functools.cache
def _is_local(name: str) -> bool:
    """Whether a module may not be importable elsewhere: it is neither installed nor of a registered plugin."""
    module, top = sys.modules.get(name), name.partition(".")[0]
    file = getattr(module, "__file__", None)
    if not isinstance(module, types.ModuleType) or module.__name__ != name:
        return False  # some libraries put objects there
    if file is None:
        return module.__spec__ is None and name not in sys.builtin_module_names
    folders = [sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    return top not in _packages() and not file.startswith((*folders, str(Path(__file__).parents[1])))


@functools.cache
def _packages() -> set[str]:
    return {point.value.partition(":")[0].partition(".")[0] for point in installed()[0]}


@functools.cache
def _processes() -> list[tuple[str, subprocess.Popen[bytes]]]:
    seeds = [seed for seed in ("1", "2", "3") if seed != os.environ.get(VARIABLE)][:OTHERS]
    started = []
    for seed in seeds:
        command = [sys.executable, "-c", f"{CODE}; serve()"]
        environment = {**os.environ, VARIABLE: seed}
        process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None
        pickle.dump(sys.path, process.stdin)
        started.append((f"{VARIABLE}={seed}", process))
    atexit.register(_stop)
    return started


def _stop() -> None:
    if _processes.cache_info().currsize:
        others = _processes()
        _processes.cache_clear()
        for _, process in others:
            process.kill()
            process.communicate()
