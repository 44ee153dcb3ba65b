"""What a process of the sandbox does: be a program, serve the calls of a program's function, or run a test.

Everything here runs in the process of the program, which can change all of it. So nothing that decides a score is here:
the caller has the expected values, and receives plain values. Standard library only.
"""

import _thread
import atexit
import builtins
import contextlib
import gc
import io
import linecache
import multiprocessing
import multiprocessing.context
import os
import resource
import socket
import sys
import tempfile
import threading
import traceback
import types
from collections.abc import Callable
from typing import Any, NoReturn

from marl_verl_sandbox import values

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""All of it. A thread for every core, as numeric libraries start them, would use up the address space."""
FILE = "program.py"
CONTROL = (AssertionError, StopIteration, StopAsyncIteration)
"""Exceptions of a program that a test sees as RuntimeError: `map` in a test would end at a StopIteration, and pass."""
NICE = 5
STREAMS = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2, "/dev/fd/0": 0, "/dev/fd/1": 1, "/dev/fd/2": 2}
POOL = 4  # processors that a program sees at most: a pool has a process, or some threads, for each


def limit(request: dict[str, Any], processes: bool) -> None:
    """Set this process's resource limits, which it cannot raise again; but for the stack, which is in its memory."""
    seconds, memory = int(request["seconds"]) + 2, request["megabytes"] << 20
    for kind, most in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, values.LONGEST),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_SIGPENDING, 64),
        # without processes of its own it would count those of the user: the guard counts the program's threads
        *([(resource.RLIMIT_NPROC, request["processes"])] if processes else []),
    ):
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    if soft == resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_STACK, (8 << 20, hard))
    os.nice(NICE)


def standard_streams() -> None:
    """New text streams on the descriptors 0, 1 and 2, and an environment, arguments and a folder of our own."""
    os.environ.clear()
    os.environ.update(ENVIRONMENT, TMPDIR=os.getcwd())
    tempfile.tempdir = None
    sys.argv = [FILE]
    sys.stdin = open(0, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115
    vars(sys).update(__stdin__=sys.stdin, __stdout__=sys.stdout, __stderr__=sys.stderr)
    for name in [name for name in sys.modules if name.partition(".")[0] == "marl_verl_sandbox"]:
        del sys.modules[name]  # so that a program cannot import the rest of the package by them


def fit(request: dict[str, Any], processes: bool) -> None:
    """Have what programs often ask for work within the limits: the stack of a thread, the number of processors, locks
    of multiprocessing where there are threads only, the names of the standard streams where there is no /proc."""
    set_size, open_file, count = threading.stack_size, open, min(os.cpu_count() or 1, POOL)

    def stack_size(*size: int) -> int:
        return set_size(*(min(number, request["megabytes"] << 18) for number in size))

    def open_stream(file: Any, *arguments: Any, **named: Any) -> Any:
        return open_file(os.dup(STREAMS[file]) if file in STREAMS else file, *arguments, **named)

    threading.stack_size = _thread.stack_size = stack_size
    os.cpu_count = lambda: count
    if "/dev/" in request.get("program", "") and not os.path.exists("/dev/stdin"):  # it would be seen in a traceback
        builtins.open = io.open = open_stream
    if not processes:  # those of processes are files in /dev/shm
        for name in ("Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Event", "Barrier"):
            kind = getattr(threading, name)
            setattr(multiprocessing, name, kind)
            setattr(multiprocessing.context.BaseContext, name, lambda _, *arguments, kind=kind: kind(*arguments))


def run(request: dict[str, Any], channel: socket.socket, processes: bool) -> NoReturn:
    """Do what the request says, and end the process."""
    kinds: dict[str, Callable[[dict[str, Any], socket.socket], int]] = {"main": main, "serve": serve, "judge": judge}
    code = 1
    with contextlib.suppress(BaseException):
        fit(request, processes)
        code = kinds[request["kind"]](request, channel)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    os._exit(code)


def main(request: dict[str, Any], channel: socket.socket) -> int:
    """Run the program as `python program.py`; return its exit code."""
    channel.close()
    output, module = sys.stdout, types.ModuleType("__main__")
    try:
        load(request["program"], module)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
    except BaseException as error:  # noqa: BLE001 - any exception of the program
        frame = error.__traceback__ and error.__traceback__.tb_next
        while frame is not None and frame.tb_frame.f_code.co_filename != FILE:
            frame = frame.tb_next
        traceback.print_exception(type(error), error, frame)
        code = 1
    # what an interpreter does at its end: threads, exit functions, objects of the module
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    flush(sys.stdout)
    sys.stdout = output
    clear(module)
    flush(output)
    return code & 0xFF


def flush(stream: Any) -> None:
    """Flush a stream that a program may have closed, or replaced by one of its own."""
    if stream is not None and not getattr(stream, "closed", False):
        stream.flush()


def clear(module: types.ModuleType) -> None:
    """Set a module's names to None, those that begin with one "_" first: its objects end, and its files are written."""
    names = vars(module)
    for private in (True, False):
        for name in list(names):
            if name != "__builtins__" and (name[:1] == "_" and name[1:2] != "_") is private:
                names[name] = None
    gc.collect()


def load(program: str, module: types.ModuleType) -> dict[str, Any]:
    """Execute a program in a new module; return its namespace."""
    module.__dict__.update(__file__=os.path.abspath(FILE), __builtins__=builtins)
    sys.modules[module.__name__] = module
    linecache.cache[FILE] = (len(program), None, program.splitlines(keepends=True), FILE)
    exec(compile(program, FILE, "exec", dont_inherit=True), module.__dict__)
    return module.__dict__


def serve(request: dict[str, Any], channel: socket.socket) -> int:
    """Load a program; answer calls [args, kwargs] of its function `entry` with ["value", ...] or ["raise", ...]."""
    try:
        function = function_of(load(request["program"], types.ModuleType("program")), request["entry"])
    except BaseException as error:  # noqa: BLE001 - any exception of the program
        values.send(channel, values.to_json(raised(error)))
        return 1
    values.send(channel, values.to_json(["value", None]))
    while (message := values.receive(channel.recv)) is not None:
        try:
            arguments, named = values.from_json(message)
            answer = values.to_json(["value", function(*arguments, **named)])
        except BaseException as error:  # noqa: BLE001 - as above
            answer = values.to_json(raised(error))
        values.send(channel, answer)
    return 0


def function_of(names: dict[str, Any], entry: str) -> Any:
    """The function `entry` of a program, or for "Class.method" the method of a new object of the class."""
    first, *rest = entry.split(".")
    if first not in names:
        raise NameError(f"it has no '{first}'")
    value = names[first]
    for name in rest:
        value = getattr(value() if isinstance(value, type) else value, name)
    return value


def raised(error: BaseException) -> list[Any]:
    """An exception as plain data: its type's name, and one line of its message."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - of the program's own class
        message = ""
    return ["raise", type(error).__name__, (message.splitlines() or [""])[0][:200]]


def judge(request: dict[str, Any], channel: socket.socket) -> int:
    """Run a test, statements with assertions. Sends ["call", args, kwargs] for each call of `candidate`, which the
    caller passes on to the program's process, and at last ["passed"] or ["raise", ...]."""

    def candidate(*arguments: Any, **named: Any) -> Any:
        values.send(channel, values.to_json(["call", list(arguments), named]))
        message = values.receive(channel.recv)
        if message is None:
            raise SystemExit
        answer = values.from_json(message)
        if answer[0] == "value":
            return answer[1]
        kind = getattr(builtins, str(answer[1]), None)
        known = isinstance(kind, type) and issubclass(kind, Exception) and kind not in CONTROL
        error = RuntimeError(f"{answer[1]}: {answer[2]}")
        if known and kind is not None:
            with contextlib.suppress(TypeError):  # UnicodeDecodeError and its like need other arguments
                error = kind(answer[2])
        raise error

    names: dict[str, Any] = {"__name__": "tests"}
    try:
        exec(compile(request["setup"], "setup.py", "exec", dont_inherit=True), names)
        names.update({"candidate": candidate, request["entry"].split(".")[-1]: candidate})
        exec(compile(request["test"], "test.py", "exec", dont_inherit=True), names)
    except BaseException as error:  # noqa: BLE001 - a failed assertion, and any other exception
        values.send(channel, values.to_json(raised(error)))
        return 1
    values.send(channel, values.to_json(["passed"]))
    return 0
