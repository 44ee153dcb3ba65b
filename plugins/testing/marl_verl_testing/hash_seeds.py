"""Repeat a computation in processes with other hash seeds, in which sets of texts have another order.

A workflow that iterates over a set behaves in the same way for the whole life of a process, and differently in the next
one: resumed runs and replays would fail. The processes are started once, and end with this one.
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
from typing import Any

import cloudpickle

import marl_verl
from marl_verl.errors import MarlWarning
from marl_verl.plugins.loading import GROUP

VARIABLE = "PYTHONHASHSEED"
OTHERS = 2  # processes: a set of two texts has the same order in all three with a probability of 1/4
CODE = "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); from marl_verl_testing.hash_seeds import serve"
INSTALLED = (
    *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")),
    str(Path(marl_verl.__file__).parent),
)
processes: dict[str, subprocess.Popen[bytes]] = {}


def elsewhere(compute: Callable[[], Any], label: str) -> list[tuple[str, Any]]:
    """[(setting of a process, the result of `compute` there)] for each process; results must be plain data.

    A computation that cannot be sent, or fails there, is a MarlWarning that begins with `label`.
    """
    try:
        payload = _packed(compute)
        if not processes:
            _start()
        for process in processes.values():
            pickle.dump(payload, process.stdin)  # type: ignore[arg-type]
            process.stdin.flush()  # type: ignore[union-attr]
        replies = [(setting, *pickle.load(process.stdout)) for setting, process in processes.items()]  # type: ignore[arg-type]
    except Exception as error:  # noqa: BLE001  objects of the user, which may hold anything
        _stop()
        replies = [("", False, str(error))]
    except BaseException:  # interrupted: a process may still be computing
        _stop()
        raise
    for _, right, reply in replies:
        if not right:
            why = "is not checked with other hash seeds, which change the order of sets"
            warnings.warn(f"{label} {why}: {reply}", MarlWarning, stacklevel=4)
            return []
    return [(setting, reply) for setting, _, reply in replies]


def serve() -> None:
    """Answer requests from standard input until it is closed; runs in the other processes."""
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


def _packed(compute: Callable[[], Any]) -> bytes:
    """The computation with the code of modules that are not installed, since importing a test module may be slow."""
    known = cloudpickle.list_registry_pickle_by_value()
    local = [
        module
        for name, module in list(sys.modules.items())
        if (file := getattr(module, "__file__", None)) and not file.startswith(INSTALLED)
        if getattr(module, "__name__", None) == name and name not in known and name.partition(".")[0] not in _plugins()
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


def _start() -> None:
    atexit.register(_stop)
    for seed in [seed for seed in ("1", "2", "3") if seed != os.environ.get(VARIABLE)][:OTHERS]:
        command, environment = [sys.executable, "-c", f"{CODE}; serve()"], {**os.environ, VARIABLE: seed}
        process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        pickle.dump(sys.path, process.stdin)  # type: ignore[arg-type]
        processes[f"{VARIABLE}={seed}"] = process


def _stop() -> None:
    for process in processes.values():
        process.kill()
        process.communicate()
    processes.clear()
