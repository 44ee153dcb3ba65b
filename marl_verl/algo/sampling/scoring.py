"""Scores and role rewards in processes of their own, where a time limit ends them whatever they do.

A thread cannot be stopped, and one call into C that keeps the interpreter (`eval` of `9**9**9`) would stop every
episode of its process. So a synchronous function with a time limit runs in a worker process, unless it is `quick`.
The process starts with the first call, keeps its functions, and ends at a limit or with this process. While calls
wait, another one starts each `PATIENCE` seconds.
"""

import atexit
import contextlib
import multiprocessing
import os
import pickle
import queue
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from marl_verl.episode.calls import in_thread, is_async, perform
from marl_verl.errors import MarlWarning, format_error
from marl_verl.tasks.base import is_quick

PROCESSES = 16
PATIENCE = 0.25
_START_SECONDS = 300.0  # importing what a function needs, on a busy machine
MEMORY = 4 << 30
"""Bytes of a process."""


async def scored(fn: Callable[..., Any], calls: Sequence[tuple[Any, ...]], seconds: float | None) -> list[Any]:
    """The results of `fn(*arguments)` for each tuple of arguments, each within `seconds` (None: no limit).

    Without a limit, and for async or `quick` functions, they run in this process. So do functions and arguments that
    cannot be pickled, with a MarlWarning: a limit then cannot end them. A call that reaches a `breakpoint()` begins
    again in this process, which may have a terminal.

    Raises:
        TimeoutError: the limit is reached. The function is ended.
        Exception: raised by `fn`.
    """
    if seconds is None or is_async(fn) or is_quick(fn) or _key(fn) in _POOL.awaitable:
        return [await perform(fn, arguments, seconds) for arguments in calls]
    try:
        request = _POOL.function(fn), cloudpickle.dumps(list(calls)), len(calls)
    except Exception as error:  # noqa: BLE001 - pickling runs code of users
        name = getattr(fn, "__qualname__", type(fn).__qualname__)
        why = f"its function or arguments cannot be pickled ({format_error(error)})"
        warnings.warn(MarlWarning(f"a time limit cannot end {name}: {why}"), stacklevel=2)
        return [await perform(fn, arguments, seconds) for arguments in calls]
    try:
        results: list[Any] | None = await in_thread(_POOL.call, (*request, seconds))
    except _Breakpoint:
        return [await perform(fn, arguments) for arguments in calls]
    if results is None:  # it returns awaitables, which belong to this event loop
        _POOL.awaitable.add(_key(fn))
        return [await perform(fn, arguments, seconds) for arguments in calls]
    return results


class _Breakpoint(BaseException):
    """Raised by `breakpoint()` in a worker process; not an Exception, so that most code does not catch it."""


@dataclass(frozen=True)
class _Function:
    """A function, as pickled once; it is kept, so that `key` stays unique."""

    key: tuple[int, int]
    fn: Callable[..., Any]
    pickled: bytes


def _key(fn: Callable[..., Any]) -> tuple[int, int]:
    """A function, or the method of an object: methods are new objects with each access."""
    return id(getattr(fn, "__self__", fn)), id(getattr(fn, "__func__", fn))


class _Pool:
    """The worker processes of this process; callable from any thread."""

    def __init__(self) -> None:
        self._idle: queue.SimpleQueue[_Worker | None] = queue.SimpleQueue()  # None: a process may be started
        self._lock, self._processes = threading.Lock(), 0
        self._begun = 0.0  # when the latest process was started
        self.awaitable: set[tuple[int, int]] = set()  # functions that are not async, but return awaitables
        self._workers: set[_Worker] = set()
        self._functions: dict[tuple[int, int], _Function] = {}
        atexit.register(self.stop)

    def function(self, fn: Callable[..., Any]) -> _Function:
        """A function or method with its pickle, made with its first call."""
        key = _key(fn)
        if key not in self._functions:
            self._functions[key] = _Function(key, fn, cloudpickle.dumps(fn))
        return self._functions[key]

    def call(self, function: _Function, calls: bytes, count: int, seconds: float) -> list[Any] | None:
        """The results of pickled calls; None if the function returns awaitables. A process ends with its limit."""
        worker = self._take()
        try:
            worker = worker or _Worker()
            self._workers.add(worker)
            results = worker.call(function, calls, count, seconds)
        except BaseException:
            if worker is not None:
                self._workers.discard(worker)
                worker.stop()
            self._idle.put(None)
            raise
        self._idle.put(worker)
        return _values(results)

    def stop(self) -> None:
        for worker in list(self._workers):
            worker.stop()

    def _take(self) -> "_Worker | None":
        """An idle worker, or None where a process is to be started: one each `PATIENCE` seconds while calls wait."""
        while True:
            try:
                return self._idle.get(timeout=PATIENCE if self._processes else 0)
            except queue.Empty:
                with self._lock:
                    if self._processes < PROCESSES and time.monotonic() - self._begun > PATIENCE:
                        self._processes, self._begun = self._processes + 1, time.monotonic()
                        return None


def _values(results: Sequence[tuple[str, Any]]) -> list[Any] | None:
    for kind, value in results:
        if kind == "raised":
            raise value
        if kind == "breakpoint":
            raise _Breakpoint
        if kind == "awaitable":
            return None
    return [value for _, value in results]


class _Worker:
    """One process that runs `serve`."""

    def __init__(self) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        code = f"from marl_verl.algo.sampling.scoring import serve; serve({theirs.fileno()})"
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a function prints is no reply
                pass_fds=[theirs.fileno()],
                env=env,
                process_group=0,
            )
        self._functions: set[tuple[int, int]] = set()
        try:
            self._read(_START_SECONDS)
        except BaseException:
            self.stop()
            raise

    def call(self, function: _Function, calls: bytes, count: int, seconds: float) -> list[tuple[str, Any]]:
        """(kind, value) of each call, up to the first that raised. TimeoutError; RuntimeError: the process ended."""
        pickled = None if function.key in self._functions else function.pickled
        self._send(pickle.dumps((function.key, pickled, seconds)))
        self._send(calls)
        self._read(_START_SECONDS)  # everything is loaded
        self._functions.add(function.key)
        results: list[tuple[str, Any]] = []
        while len(results) < count and not (results and results[-1][0] != "value"):
            results.append(self._read(seconds))
        return results

    def _send(self, data: bytes) -> None:
        try:
            self._pipe.send_bytes(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise self._ended() from error

    def stop(self) -> None:
        """End the process and those that its function has started, which hold its pipes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._pipe.close()

    def _read(self, seconds: float) -> tuple[str, Any]:
        if not self._pipe.poll(seconds):
            raise TimeoutError(f"it took longer than {seconds:g} s")
        try:
            kind, value = pickle.loads(self._pipe.recv_bytes())
        except (EOFError, OSError) as error:
            raise self._ended() from error
        if kind == "failed":
            message = f"a function cannot be loaded in a process of its own, which has {MEMORY >> 30} GiB: {value}"
            raise RuntimeError(f"{message}. Declare it `quick` to run it in the rollout worker.")
        return kind, value

    def _ended(self) -> RuntimeError:
        code = self._process.wait()
        return RuntimeError(f"its process ended with {f'signal {-code}' if code < 0 else f'exit code {code}'}")


def serve(descriptor: int) -> None:
    """The worker's process: answer requests until its pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run
    pipe = Connection(descriptor)
    if os.environ.get("PYTHONBREAKPOINT") != "0":
        sys.breakpointhook = _stop
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pipe.send_bytes(pickle.dumps(("ready", None)))
    functions: dict[tuple[int, int], Callable[..., Any]] = {}
    with contextlib.suppress(EOFError, OSError):  # the pipe has ended
        while True:
            (key, pickled, seconds), body = pickle.loads(pipe.recv_bytes()), pipe.recv_bytes()
            try:
                if pickled is not None:
                    functions[key] = pickle.loads(pickled)
                calls = pickle.loads(body)
            except Exception as error:  # noqa: BLE001 - code of users
                pipe.send_bytes(pickle.dumps(("failed", format_error(error))))
                continue
            pipe.send_bytes(pickle.dumps(("loaded", None)))
            for arguments in calls:
                signal.setitimer(signal.ITIMER_REAL, seconds + 1)  # ends this process if its parent is gone
                kind, reply = _reply(functions[key], arguments)
                signal.setitimer(signal.ITIMER_REAL, 0)
                pipe.send_bytes(reply)
                if kind != "value":
                    break


def _reply(fn: Callable[..., Any], arguments: Sequence[Any]) -> tuple[str, bytes]:
    """(kind, pickled reply) of one call."""
    try:
        value = fn(*arguments)
        if hasattr(value, "__await__"):
            getattr(value, "close", lambda: None)()
            return "awaitable", pickle.dumps(("awaitable", None))
        return "value", cloudpickle.dumps(("value", value))
    except _Breakpoint:
        return "breakpoint", pickle.dumps(("breakpoint", None))
    except BaseException as error:  # noqa: BLE001 - raised where it is awaited
        error.add_note(f"in a process of its own:\n{''.join(traceback.format_exception(error)[1:])}")
        return "raised", _pickled(error)


def _stop(*_: Any, **__: Any) -> None:
    raise _Breakpoint


def _pickled(error: BaseException) -> bytes:
    """An exception; as a RuntimeError if it cannot be pickled, or would end or confuse an event loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        with contextlib.suppress(Exception):  # code of users
            reply: bytes = cloudpickle.dumps(("raised", error))
            pickle.loads(reply)
            return reply
    return pickle.dumps(("raised", RuntimeError(format_error(error))))


_POOL = _Pool()


def end_processes() -> None:
    """End the worker processes of this process; later calls start new ones."""
    global _POOL
    _POOL.stop()
    _POOL = _Pool()
