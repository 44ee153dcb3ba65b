"""Calls in processes of their own, where a limit ends them whatever they do: scores, role rewards, libraries.

A thread cannot be stopped, and one call into C that keeps the interpreter (`eval` of `9**9**9`) would stop every
episode of its process. So a synchronous function with a time limit runs in a worker process, unless it is `quick`.
The process starts with the first call, keeps its functions, and ends at a limit or with this process. While calls
wait, another one starts each `PATIENCE` seconds.
"""

import asyncio
import atexit
import contextlib
import inspect
import json
import multiprocessing
import os
import pickle
import queue
import resource
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from marl_verl.errors import RAISED, MarlError, MarlWarning, format_error, raised_at, with_line
from marl_verl.extensions import RUN_OPTIONS, use_run_options
from marl_verl.tasks.base import is_quick, name_of
from marl_verl.threads import call_in_thread, is_async, perform

PATIENCE = 0.25
_START_SECONDS = 300.0  # importing what a function needs, on a busy machine
_GRACE = 60.0  # seconds beside a limit of processor time
MEMORY = 4 << 30  # bytes of a process
_NOT_LOADED = f"a function cannot be loaded in a process of its own, which has {MEMORY >> 30} GiB"
Key = tuple[int, int]
Seconds = tuple[float, float]  # limits of a call: of time, and of processor time (0: none)


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
            request = *_POOL.pickled(fn), cloudpickle.dumps(list(calls)), len(calls), (seconds, 0.0)
        except Exception as error:  # noqa: BLE001 - pickling runs code of users
            why = f"its function or arguments cannot be pickled ({format_error(error)})"
            warnings.warn(MarlWarning(f"a time limit cannot end {name_of(fn)}: {why}"), stacklevel=2)
        else:
            try:
                return await call_in_thread(_POOL.call, request)
            except Breakpoint:
                seconds = None
    return [await perform(fn, arguments, seconds) for arguments in calls]


def call_in_process(fn: Callable[..., Any], *arguments: Any, seconds: float) -> Any:
    """The value of `fn(*arguments)`, for libraries that a text can keep busy for ever, such as SymPy.

    All calls share a process, one at a time, from any thread. `seconds` limits the processor time of a call: its result
    does not depend on what else runs on the machine.

    Raises:
        TimeoutError, RuntimeError: the limit is reached; the process ended.
        MarlError: the function cannot be loaded in the process.
        Exception: raised by `fn`.
    """
    return _LIBRARIES.value(fn, *arguments, seconds=(seconds + _GRACE, seconds))


class Breakpoint(BaseException):
    """Raised by `breakpoint()` in a worker process; not an Exception, so that most code does not catch it."""


class Workers:
    """Worker processes of this process, at most so many; callable from any thread."""

    def __init__(self, processes: int, environment: Mapping[str, str] = {}) -> None:
        self._processes, self._environment = processes, environment
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._workers: list[_Worker] = []
        self._lock = threading.Lock()
        self._functions: dict[Key, tuple[Callable[..., Any], bytes]] = {}  # kept, so that keys stay unique
        atexit.register(self.stop)

    def pickled(self, fn: Callable[..., Any]) -> tuple[Key, bytes]:
        """The key of a function or method, and its pickle, made with its first call."""
        # methods are new objects with each access
        key = id(getattr(fn, "__self__", fn)), id(getattr(fn, "__func__", fn))
        if key not in self._functions:
            self._functions[key] = fn, cloudpickle.dumps(fn)
        return key, self._functions[key][1]

    def value(self, fn: Callable[..., Any], *arguments: Any, seconds: Seconds) -> Any:
        """The value of one call. Raises what `_Worker.call` raises."""
        (value,) = self.call(*self.pickled(fn), cloudpickle.dumps([arguments]), 1, seconds)
        return value

    def call(self, *request: Any) -> list[Any]:
        """The results of `_Worker.call`, by an idle worker."""
        worker = self._take()
        try:
            return worker.call(*request)
        finally:
            self._idle.put(worker)

    def stop(self) -> None:
        """End the processes, and forget their functions; later calls start new ones."""
        for worker in self._workers:
            worker.stop()
        self._functions.clear()

    def _take(self) -> "_Worker":
        """An idle worker; one is added each `PATIENCE` seconds while calls wait."""
        with self._lock:
            while True:
                try:
                    return self._idle.get(timeout=PATIENCE if self._workers else 0)
                except queue.Empty:
                    if len(self._workers) < self._processes:
                        self._workers.append(_Worker(self._environment))
                        return self._workers[-1]


class _Worker:
    """A process that runs `serve`. It starts with a call, also with the next one after it has ended."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    def call(self, key: Key, function: bytes, calls: bytes, count: int, seconds: Seconds) -> list[Any]:
        """The results of pickled calls. The process ends with a limit.

        Raises:
            TimeoutError, RuntimeError, MarlError: a limit is reached; the process ended; the function cannot be loaded.
            BaseException: raised by the first call that raised.
        """
        replies: list[tuple[bool, Any]] = []
        try:
            if self._process is not None and self._process.poll() is not None:
                self.stop()  # something has ended it since the last call
            if self._process is None:
                self._start()
            function_once = None if key in self._known else function
            self._pipe.send_bytes(pickle.dumps((key, function_once, calls, seconds)))
            replies.append(self._read(_START_SECONDS))  # everything is loaded
            self._known |= {key} if not replies[0][0] else set()
            while len(replies) <= count and not replies[-1][0]:
                replies.append(self._read(seconds[0]))
        except BaseException as error:  # noqa: BLE001 - raised below
            reason = error
            if self._process is not None and isinstance(error, EOFError | ConnectionError):
                reason = _ended(self._process.wait(), seconds[1])
            self.stop()
            if not replies and isinstance(reason, TimeoutError | RuntimeError):
                reason = MarlError(f"{_NOT_LOADED}: {reason}")
            raise reason  # noqa: B904  (it may be `error`)
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
        path = os.pathsep.join(entry for entry in sys.path if entry)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a function prints is no reply
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": path, **self._environment},
                process_group=0,
            )
        self._known: set[Key] = set()  # functions that the process has

    def _read(self, seconds: float) -> tuple[bool, Any]:
        """(whether it was raised, value) of a reply."""
        if not self._pipe.poll(seconds):
            raise TimeoutError(f"it took longer than {seconds:g} s")
        return pickle.loads(self._pipe.recv_bytes())


def _ended(code: int, processor_seconds: float) -> Exception:
    """Why a process has ended with an exit code."""
    if code == -signal.SIGPROF:
        return TimeoutError(f"it needed more than {processor_seconds:g} s of processor time")
    return RuntimeError(f"its process ended with {f'signal {-code}' if code < 0 else f'exit code {code}'}")


def serve(descriptor: int) -> None:
    """The worker's process: answer requests until its pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run
    pipe = Connection(descriptor)
    if os.environ.get("PYTHONBREAKPOINT") != "0":
        sys.breakpointhook = _stop
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    functions: dict[Key, Callable[..., Any]] = {}
    if options := json.loads(os.environ.get(RUN_OPTIONS, "{}")):
        use_run_options(options)
    with contextlib.suppress(EOFError, OSError):  # the pipe has ended
        while True:
            for reply in _replies(functions, *pickle.loads(pipe.recv_bytes())):
                pipe.send_bytes(reply)


def _replies(
    functions: dict[Key, Callable[..., Any]], key: Key, function: bytes | None, calls: bytes, seconds: Seconds
) -> Iterator[bytes]:
    """A reply when everything is loaded, then one for each call, up to the first that raises."""
    try:
        if function is not None:
            functions[key] = pickle.loads(function)
        arguments_of_calls = pickle.loads(calls)
    except Exception as error:  # noqa: BLE001 - code of users
        remedy = "Declare it `quick` to run it in the rollout worker."
        yield _raised(MarlError(f"{_NOT_LOADED}: {format_error(error)}. {remedy}"))
        return
    yield pickle.dumps((False, None))
    for arguments in arguments_of_calls:
        signal.setitimer(signal.ITIMER_REAL, seconds[0] + 1)  # ends this process if its parent is gone
        signal.setitimer(signal.ITIMER_PROF, seconds[1])
        try:
            value = functions[key](*arguments)
            reply = cloudpickle.dumps((False, asyncio.run(value) if inspect.iscoroutine(value) else value))
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            error.add_note(f"in a process of its own:\n{''.join(traceback.format_exception(error)[1:])}")
            vars(error)[RAISED] = raised_at(error)
            yield _raised(error)
            return
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.setitimer(signal.ITIMER_PROF, 0)
        yield reply


def _stop(*_: Any, **__: Any) -> None:
    raise Breakpoint


def _raised(error: BaseException) -> bytes:
    """A reply with an exception; as a RuntimeError if it cannot be pickled, or would end or confuse an event loop."""
    if isinstance(error, Exception | Breakpoint) and not isinstance(error, StopIteration):
        with contextlib.suppress(Exception):  # code of users
            reply: bytes = cloudpickle.dumps((True, error))
            pickle.loads(reply)
            return reply
    return pickle.dumps((True, RuntimeError(with_line(error))))


_POOL, _LIBRARIES = Workers(16), Workers(1)


def end_processes() -> None:
    """End the worker processes of this process; later calls start new ones."""
    for pool in (_POOL, _LIBRARIES):
        pool.stop()
