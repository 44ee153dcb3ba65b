"""Scores and role rewards in processes of their own, where a time limit ends them whatever they do.

A thread cannot be stopped, and one call into C that keeps the interpreter (`eval` of `9**9**9`) would stop every
episode of its process. So a synchronous function with a time limit runs in a worker process, unless it is `quick`.
The process starts with the first call, keeps its functions, and ends at a limit or with this process. While calls
wait, another one starts each `PATIENCE` seconds.
"""

import asyncio
import atexit
import contextlib
import inspect
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
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from marl_verl.errors import MarlWarning, format_error
from marl_verl.tasks.base import is_quick
from marl_verl.threads import call_in_thread, is_async, perform

PROCESSES = 16
PATIENCE = 0.25
_START_SECONDS = 300.0  # importing what a function needs, on a busy machine
MEMORY = 4 << 30
"""Bytes of a process."""
Key = tuple[int, int]


async def scored(fn: Callable[..., Any], calls: Sequence[tuple[Any, ...]], seconds: float | None) -> list[Any]:
    """The results of `fn(*arguments)` for each tuple of arguments, each within `seconds` (None: no limit).

    Without a limit, and for async or `quick` functions, they run in this process. So do functions and arguments that
    cannot be pickled, with a MarlWarning: a limit then cannot end them. A call that reaches a `breakpoint()` begins
    again in this process, which may have a terminal.

    Raises:
        TimeoutError: the limit is reached. The function is ended.
        Exception: raised by `fn`.
    """
    if seconds is not None and not is_async(fn) and not is_quick(fn):
        try:
            request = *_POOL.pickled(fn), cloudpickle.dumps(list(calls)), len(calls), seconds
        except Exception as error:  # noqa: BLE001 - pickling runs code of users
            name = getattr(fn, "__qualname__", type(fn).__qualname__)
            why = f"its function or arguments cannot be pickled ({format_error(error)})"
            warnings.warn(MarlWarning(f"a time limit cannot end {name}: {why}"), stacklevel=2)
        else:
            try:
                return await call_in_thread(_POOL.call, request)
            except _Breakpoint:
                seconds = None
    return [await perform(fn, arguments, seconds) for arguments in calls]


class _Breakpoint(BaseException):
    """Raised by `breakpoint()` in a worker process; not an Exception, so that most code does not catch it."""


class _Pool:
    """The worker processes of this process; callable from any thread."""

    def __init__(self) -> None:
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._workers: list[_Worker] = []
        self._lock, self._begun = threading.Lock(), 0.0  # when the latest worker was added
        self._functions: dict[Key, tuple[Callable[..., Any], bytes]] = {}  # kept, so that keys stay unique
        atexit.register(self.stop)

    def pickled(self, fn: Callable[..., Any]) -> tuple[Key, bytes]:
        """The key of a function or method, and its pickle, made with its first call."""
        # methods are new objects with each access
        key = id(getattr(fn, "__self__", fn)), id(getattr(fn, "__func__", fn))
        if key not in self._functions:
            self._functions[key] = fn, cloudpickle.dumps(fn)
        return key, self._functions[key][1]

    def call(self, *request: Any) -> list[Any]:
        """The results of `_Worker.call`, by an idle worker."""
        worker = self._take()
        try:
            return worker.call(*request)
        finally:
            self._idle.put(worker)

    def stop(self) -> None:
        for worker in self._workers:
            worker.stop()

    def _take(self) -> "_Worker":
        """An idle worker; one is added each `PATIENCE` seconds while calls wait."""
        while True:
            try:
                return self._idle.get(timeout=PATIENCE if self._workers else 0)
            except queue.Empty:
                with self._lock:
                    if len(self._workers) < PROCESSES and time.monotonic() - self._begun > PATIENCE:
                        self._begun = time.monotonic()
                        self._workers.append(_Worker())
                        return self._workers[-1]


class _Worker:
    """A process that runs `serve`. It starts with a call, also with the next one after it has ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def call(self, key: Key, function: bytes, calls: bytes, count: int, seconds: float) -> list[Any]:
        """The results of pickled calls. The process ends with a limit.

        Raises:
            TimeoutError, RuntimeError: a call took longer than `seconds`; the process ended.
            BaseException: raised by the first call that raised.
        """
        try:
            if self._process is None:
                self._start()
            self._pipe.send_bytes(pickle.dumps((key, None if key in self._known else function, calls, seconds)))
            replies = [self._read(_START_SECONDS)]  # everything is loaded
            self._known |= {key} if not replies[0][0] else set()
            while len(replies) <= count and not replies[-1][0]:
                replies.append(self._read(seconds))
        except (EOFError, ConnectionError) as error:
            code = self._process.wait() if self._process else 0
            self.stop()
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            raise RuntimeError(f"its process ended with {how}") from error
        except BaseException:
            self.stop()
            raise
        raised, value = replies[-1]
        if raised:
            raise value
        return [value for _, value in replies[1:]]

    def stop(self) -> None:
        """End the process and those that its function has started, which hold its pipes."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
            self._pipe.close()

    def _start(self) -> None:
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
        self._known: set[Key] = set()  # functions that the process has

    def _read(self, seconds: float) -> tuple[bool, Any]:
        """(whether it was raised, value) of a reply."""
        if not self._pipe.poll(seconds):
            raise TimeoutError(f"it took longer than {seconds:g} s")
        return pickle.loads(self._pipe.recv_bytes())


def serve(descriptor: int) -> None:
    """The worker's process: answer requests until its pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run
    pipe = Connection(descriptor)
    if os.environ.get("PYTHONBREAKPOINT") != "0":
        sys.breakpointhook = _stop
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    functions: dict[Key, Callable[..., Any]] = {}
    with contextlib.suppress(EOFError, OSError):  # the pipe has ended
        while True:
            for reply in _replies(functions, *pickle.loads(pipe.recv_bytes())):
                pipe.send_bytes(reply)


def _replies(
    functions: dict[Key, Callable[..., Any]], key: Key, function: bytes | None, calls: bytes, seconds: float
) -> Iterator[bytes]:
    """A reply when everything is loaded, then one for each call, up to the first that raises."""
    try:
        if function is not None:
            functions[key] = pickle.loads(function)
        arguments_of_calls = pickle.loads(calls)
    except Exception as error:  # noqa: BLE001 - code of users
        message = f"a function cannot be loaded in a process of its own, which has {MEMORY >> 30} GiB"
        remedy = "Declare it `quick` to run it in the rollout worker."
        yield _raised(RuntimeError(f"{message}: {format_error(error)}. {remedy}"))
        return
    yield pickle.dumps((False, None))
    for arguments in arguments_of_calls:
        signal.setitimer(signal.ITIMER_REAL, seconds + 1)  # ends this process if its parent is gone
        try:
            value = functions[key](*arguments)
            reply = cloudpickle.dumps((False, asyncio.run(value) if inspect.iscoroutine(value) else value))
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            error.add_note(f"in a process of its own:\n{''.join(traceback.format_exception(error)[1:])}")
            yield _raised(error)
            return
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        yield reply


def _stop(*_: Any, **__: Any) -> None:
    raise _Breakpoint


def _raised(error: BaseException) -> bytes:
    """A reply with an exception; as a RuntimeError if it cannot be pickled, or would end or confuse an event loop."""
    if isinstance(error, Exception | _Breakpoint) and not isinstance(error, StopIteration):
        with contextlib.suppress(Exception):  # code of users
            reply: bytes = cloudpickle.dumps((True, error))
            pickle.loads(reply)
            return reply
    return pickle.dumps((True, RuntimeError(format_error(error))))


_POOL = _Pool()


def end_processes() -> None:
    """End the worker processes of this process; later calls start new ones."""
    global _POOL
    _POOL.stop()
    _POOL = _Pool()
