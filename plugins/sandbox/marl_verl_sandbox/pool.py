"""The caller's side of the sandbox: start the template once for each tier, and run processes forked from it."""

import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Interval

from marl_verl.errors import MarlError
from marl_verl_sandbox import values
from marl_verl_sandbox.template import READY

FOLDER = Path(__file__).parent
# The modules of this folder alone: a program sees neither marl-verl nor the packages that are installed beside it.
START = """
import socket, sys, types
package = sys.modules["marl_verl_sandbox"] = types.ModuleType("marl_verl_sandbox")
package.__path__ = [sys.argv[3]]
from marl_verl_sandbox import template
template.main(socket.socket(fileno=int(sys.argv[1])), sys.argv[2], sys.argv[4:])
"""
PACKAGES = ("numpy", "sympy", "mpmath")  # what a program may import beside the standard library, where it is installed
PATIENCE = 30.0  # seconds for a guard to end a program; the kernel does it in milliseconds


Seconds = Annotated[float, Interval(gt=0, le=3600)]  # type of an option that limits the time of a run
Megabytes = Annotated[int, Ge(64)]  # type of an option that limits the memory of a run: Python itself needs 64 MB


class SandboxError(RuntimeError):
    """The sandbox itself failed; this says nothing about the program."""


@dataclass(frozen=True)
class Limits:
    """Limits of one run of a program."""

    seconds: Seconds = 5.0  # wall clock; the limit of processor time is two seconds more
    megabytes: Megabytes = 512  # address space of each of its processes
    processes: int = 32  # processes and threads at once
    folder_megabytes: int = 16  # its temporary folder (tier `isolated`)


class Template:
    """A running template process of one tier. MarlError if this machine does not give the tier."""

    def __init__(self, tier: str) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        arguments = [str(theirs.fileno()), tier, str(FOLDER), *_packages()]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-s", "-P", "-S", "-c", START, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                # the same program has the same output in every run; some Pythons find their own library by the path
                env={"PYTHONHASHSEED": "0", "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", "")},
                start_new_session=True,
                cwd="/",
            )
        self.control.settimeout(PATIENCE)
        answer = b""
        with contextlib.suppress(TimeoutError, ConnectionResetError):
            answer = self.control.recv(4096)
        self.control.settimeout(None)
        if answer != READY:
            self.close()
            why = answer.decode(errors="replace") or "its process does not start"
            raise MarlError(f"sandbox tier '{tier}' is not available on this machine: {why}")

    def close(self) -> None:
        self.control.close()
        self._process.kill()
        self._process.wait()


class Process(contextlib.AbstractContextManager["Process"]):
    """One process of the sandbox, for use in a `with` block, at the end of which nothing of it is left. It does what
    `request` says (`candidate.run`). MarlError: the request is too large."""

    def __init__(self, template: Template, limits: Limits, request: dict[str, Any], stdin: bytes = b"") -> None:
        message = json.dumps({**vars(limits), **request}).encode()
        if len(message) > values.REQUEST:
            raise MarlError(f"a program with its test must be at most {values.REQUEST >> 20} MiB")
        self._deadline = time.monotonic() + limits.seconds
        self._files = [os.memfd_create(name) for name in ("stdin", "stdout", "stderr")]
        self._guard, guard = socket.socketpair()
        self._channel, channel = socket.socketpair()
        self.code: int | None = None
        with guard, channel:
            try:
                with open(self._files[0], "wb", closefd=False) as file:
                    file.write(stdin)
                os.lseek(self._files[0], 0, os.SEEK_SET)
                socket.send_fds(template.control, [b"x"], [guard.fileno(), channel.fileno(), *self._files])
            except OSError as error:
                self._close()
                raise SandboxError(f"the sandbox's template process has ended ({error})") from error
        self._guard.settimeout(PATIENCE)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # `end` says so
            values.send(self._guard, message)

    def __exit__(self, *_: object) -> None:
        if self.code is None:
            self.end()

    def ask(self, message: bytes | None = None) -> bytes | None:
        """Send a message, if any, and return the next one from the process; None if it has ended. TimeoutError: the
        time of its limits is over. TooLarge: the message is too large."""
        try:
            self._channel.settimeout(self._left())
            if message is not None:
                values.send(self._channel, message)
            return values.receive(self._recv)
        except (BrokenPipeError, ConnectionResetError):
            return None

    def wait(self) -> bool:
        """Wait until the process ends or its time is over; return whether it ended."""
        self._guard.settimeout(self._left())
        try:
            self._guard.recv(1, socket.MSG_PEEK)
        except OSError as error:  # its time is over; or the guard has ended, as `end` says
            return not isinstance(error, TimeoutError)
        return True

    def end(self) -> tuple[int, str, str]:
        """Kill what is left of the process; return (exit code or minus signal, its output, its error output)."""
        try:
            self._guard.settimeout(PATIENCE)
            with contextlib.suppress(OSError):  # the guard has ended
                self._guard.shutdown(socket.SHUT_WR)
            status = None
            with contextlib.suppress(TimeoutError):
                status = values.receive(self._guard.recv)
            if status is None:
                raise SandboxError("the sandbox could not run a program, or its guard was killed (out of memory?)")
            self.code = json.loads(status)["code"]
            out, err = (os.pread(file, values.LONGEST, 0).decode(errors="replace") for file in self._files[1:])
            return self.code, out, err
        finally:
            self._close()

    def _recv(self, size: int) -> bytes:
        """Read until the deadline at most: a slow sender cannot prolong it."""
        self._channel.settimeout(self._left())
        return self._channel.recv(size)

    def _left(self) -> float:
        if (left := self._deadline - time.monotonic()) <= 0:
            raise TimeoutError
        return left

    def _close(self) -> None:
        self.code = -1 if self.code is None else self.code
        self._guard.close()
        self._channel.close()
        for file in self._files:
            os.close(file)


_templates: dict[tuple[str, int], Template] = {}
_lock = threading.Lock()


def template(tier: str) -> Template:
    """The template of a tier in this process, started on first use and again if it has been killed."""
    key = (tier, os.getpid())
    with _lock:
        if key in _templates and _templates[key]._process.poll() is not None:
            _templates.pop(key).close()
        if key not in _templates:
            _templates[key] = Template(tier)
        return _templates[key]


def _packages() -> list[str]:
    """Folders of the packages that programs may import, and of their shared libraries."""
    folders = []
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            folder = Path(spec.submodule_search_locations[0])
            folders += [str(path) for path in (folder, folder.with_name(f"{name}.libs")) if path.is_dir()]
    return folders
