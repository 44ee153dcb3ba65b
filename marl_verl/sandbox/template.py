"""The process from which every process of the sandbox is forked: a clean Python that has seen no task and no answer.

The caller starts it once, with an empty environment and no descriptors but one socket, and sends five descriptors over
it for each program: a connection, the program's channel, its standard input, output and error output. The template
forks a guard, which reads the request, enters new namespaces (tier `isolated`), forks the program's process, and ends
it with all that it has started when the caller closes the connection. Standard library only.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import select
import signal
import socket
import sys
import tempfile
from typing import Any, NoReturn

from marl_verl.sandbox import candidate, frames, namespaces, syscalls

NOBODY = 65534
PACKAGES = "/packages"
READY = b"ready"


def main(control: socket.socket, tier: str, packages: list[str]) -> None:
    """Serve requests until the caller has ended."""
    os.umask(0o022)
    proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY) if tier == "isolated" else None
    try:
        if os.uname().machine not in syscalls.MACHINES:
            raise OSError(f"no system call filter for this processor, {os.uname().machine}")
        if tier == "isolated":
            root = os.geteuid() == 0
            namespaces.enter(namespaces.MOUNTS | (0 if root else namespaces.USER))
            namespaces.private_root(os.path.dirname(os.__file__), packages, PACKAGES)
            sys.path.append(PACKAGES)
            processes = _counts_processes(proc)
        else:
            sys.path += dict.fromkeys(map(os.path.dirname, packages))
            processes = False
        sys.path[:] = [folder for folder in sys.path if folder]
        control.send(READY)
    except (OSError, ValueError) as error:
        control.send(str(error).encode())
        return
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # guards leave no zombies
    gc.freeze()
    while True:
        data, files, _, _ = socket.recv_fds(control, 1, 5)
        if not data:
            return
        try:
            if not os.fork():
                control.close()
                guard(tier, proc, files, processes)
        finally:
            for file in files:
                os.close(file)


def guard(tier: str, proc: int | None, files: list[int], processes: bool) -> NoReturn:
    """Run one program; send {"code": its exit code, minus its signal} when nothing of it is left."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        connection = socket.socket(fileno=files[0])
        request = json.loads(frames.receive(connection, 1 << 26) or b"{}")
        folder = (
            _enter(request["folder_megabytes"], proc)
            if tier == "isolated"
            else tempfile.mkdtemp(prefix="marl-verl-sandbox-")
        )
        child = os.fork()
        if not child:
            _become(request, proc, folder, files, processes)
        for file in files[1:]:
            os.close(file)
        status = _watch(child, connection)
        with contextlib.suppress(OSError):  # the caller has ended
            frames.send(connection, json.dumps({"code": status}).encode())
        if tier == "limits":
            _remove(folder)
        code = 0
    finally:
        os._exit(code)


def _remove(folder: str) -> None:
    """Remove a folder, also one with thousands of nested folders: they are moved up before they are removed."""
    number = 0
    while entries := list(os.scandir(folder)):
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
                continue
            os.chmod(entry.path, 0o700)
            for name in os.listdir(entry.path):
                number += 1
                os.rename(f"{entry.path}/{name}", f"{folder}/.{os.getpid()}-{number}")
            os.rmdir(entry.path)
    os.rmdir(folder)


def _enter(megabytes: int, proc: int | None) -> str:
    """Become another user (as root), and enter namespaces of our own; return the program's folder."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        namespaces.call("prctl", namespaces.DUMPABLE, 1, 0, 0, 0)  # otherwise its files in /proc stay root's
    kinds = namespaces.USER | namespaces.PIDS | namespaces.MOUNTS | namespaces.NETWORK | namespaces.IPC | namespaces.UTS
    namespaces.enter(kinds, proc)
    options = f"size={megabytes}m,nr_inodes=4096,mode=700"
    namespaces.mount("tmpfs", "/tmp", "tmpfs", namespaces.NO_SUID | namespaces.NO_DEVICES | namespaces.NO_EXEC, options)
    return "/tmp"


def _counts_processes(proc: int | None) -> bool:
    """Whether the kernel limits the number of processes in a user namespace; it does not for its very first user."""
    child = os.fork()
    if not child:
        code = 1
        try:
            _enter(1, proc)
            resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
            if not os.fork():
                os._exit(0)
        except BlockingIOError:
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def _become(request: dict[str, Any], proc: int | None, folder: str, files: list[int], processes: bool) -> NoReturn:
    """Turn a fresh fork into the process of the program."""
    try:
        os.setsid()
        os.chdir(folder)
        namespaces.kill_first(proc)
        for number, file in enumerate((*files[2:], files[1])):
            os.dup2(file, number + 10)
        for number in range(4):
            os.dup2(number + 10, number, inheritable=False)
        os.closerange(4, 1 << 16)
        channel = socket.socket(fileno=3)
        namespaces.drop_capabilities()
        namespaces.call("prctl", namespaces.DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
        candidate.limit(request)
        syscalls.install(processes)
        candidate.standard_streams()
        candidate.run(request, channel)
    finally:
        os._exit(1)


def _watch(child: int, connection: socket.socket) -> int:
    """Wait until the program's process ends, or the caller closes the connection; end everything; return its code.

    The process is the first of its PID namespace, with which the kernel ends all others; in tier `limits` it is alone.
    """
    ended = os.pidfd_open(child)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(connection, select.POLLIN)
    poll.poll()
    if not select.select([ended], [], [], 0)[0]:
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
