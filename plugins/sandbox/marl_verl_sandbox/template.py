"""The process from which every process of the sandbox is forked: a clean Python that has seen no task and no answer.

The caller starts it once and sends five descriptors for each program: a connection, the program's channel, its standard
input, output and error output. The template forks a guard, which reads the request, enters new namespaces (tier
`isolated`), forks the program's process, and ends it with all that it has started. Standard library only.
"""

import contextlib
import gc
import json
import math
import os
import resource
import select
import signal
import site
import socket
import sys
import tempfile
from collections.abc import Iterator
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from typing import Any, NamedTuple, NoReturn

from marl_verl_sandbox import candidate, kernel, syscalls, values

NOBODY = 65534
PACKAGES = "/packages"
PREFIX = "marl-verl-sandbox-"
READY = b"ready"
ONE_ARENA = (-8, 1)  # M_ARENA_MAX: malloc would reserve 128 MB of the address space for each thread
TICK = 0.1  # seconds between two looks at how many processes and threads a program has
WEIGHT = 1.25  # factor of the share of the processor between two levels of niceness


def main(control: socket.socket, tier: str, packages: list[str]) -> None:
    """Serve requests until the caller has ended."""
    os.umask(0o022)
    proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY)
    visible: list[tuple[str | int, int]] = []
    readable = None
    try:
        if os.uname().machine not in syscalls.MACHINES:
            raise OSError(f"no system call filter for this processor, {os.uname().machine}")
        if tier == "isolated":
            root = os.geteuid() == 0
            kernel.enter(kernel.MOUNTS | (0 if root else kernel.USER), proc)
            kernel.private_root(os.path.dirname(os.__file__), packages, PACKAGES)
            sys.path.append(PACKAGES)
            processes = _counts_processes(proc)
        else:
            sys.meta_path.append(Packages(packages))
            processes = False
            if not kernel.landlock_version():
                raise OSError("its kernel has no Landlock (Linux 5.13), so a program could read files and forge scores")
            visible, readable = _readable(packages)
        sys.path[:] = [folder for folder in sys.path if folder]
        for define in (site.setquit, site.setcopyright, site.sethelper):  # names of builtins
            define()
        kernel.library.mallopt(*ONE_ARENA)
        kernel.call("prctl", kernel.DUMPABLE, 0, 0, 0, 0)
        control.send(READY)
    except (OSError, ValueError) as error:
        control.send(str(error).encode())
        return
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # guards leave no zombies
    gc.freeze()
    start = Start(tier, proc, processes, visible, readable)
    while True:
        data, files, _, _ = socket.recv_fds(control, 1, 5)
        if not data:
            return
        try:
            if not os.fork():
                control.close()
                guard(start, files)
        finally:
            for file in files:
                os.close(file)


class Packages(MetaPathFinder):
    """Finds these packages alone, not what is installed beside them."""

    def __init__(self, folders: list[str]) -> None:
        self._folders = {os.path.basename(folder): folder for folder in folders}

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        if (folder := self._folders.get(name)) is None:
            return None
        return spec_from_file_location(name, f"{folder}/__init__.py", submodule_search_locations=[folder])


class Start(NamedTuple):
    """What the processes of a tier start with: `main` has opened it."""

    tier: str
    proc: int  # descriptor of /proc
    processes: bool  # whether programs may start processes
    visible: list[tuple[str | int, int]]  # rules of `_readable`, as the next
    readable: int | None


def _readable(packages: list[str]) -> tuple[list[tuple[str | int, int]], int]:
    """Rules of Landlock for tier `limits`, in two layers, as a rule cannot take back what another one gives.

    The first, with one more for the folder of the program, says where files may be; the second, a descriptor, leaves
    out the packages that are installed in the standard library, and has all of the folder for temporary files.
    """
    stdlib = os.path.dirname(os.__file__)
    around = [path for path in (*kernel.SYSTEM, stdlib) if os.path.exists(path)]
    devices: list[tuple[str | int, int]] = [(path, kernel.DEVICE) for path in kernel.DEVICES]
    visible = [*devices, *((path, kernel.READ) for path in (*around, *packages))]
    hidden = {*kernel.HIDDEN, os.path.basename(kernel.DEBIAN)}
    inside = [
        entry.path
        for path in around
        if os.path.isdir(path)
        for entry in os.scandir(path)
        if entry.name not in hidden and os.path.exists(entry.path)
    ]
    names = [(path, kernel.NAMES) for path in around if os.path.isdir(path)]
    layer = [*devices, *names, (tempfile.gettempdir(), kernel.everything())]
    layer += [(path, kernel.READ) for path in (*inside, *packages, *filter(os.path.isfile, around))]
    return visible, kernel.rules(layer)


def guard(start: Start, files: list[int]) -> NoReturn:
    """Run one program; send {"code": its exit code, minus its signal} when nothing of it is left."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        connection = socket.socket(fileno=files[0])
        request = json.loads(values.receive(connection.recv, values.REQUEST) or b"{}")
        isolated = start.tier == "isolated"
        path = _enter(request["folder_megabytes"], start.proc) if isolated else tempfile.mkdtemp(prefix=PREFIX)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        child = os.fork()
        if not child:
            _become(request, start, folder, files)
        for file in files[1:]:
            os.close(file)
        status = _watch(child, connection, start, request["processes"])
        with contextlib.suppress(OSError):  # the caller has ended
            values.send(connection, json.dumps({"code": status}).encode())
        if not isolated:
            remove(folder)
        code = 0
    finally:
        os._exit(code)


def _enter(megabytes: int, proc: int) -> str:
    """Become another user (as root), and enter namespaces of our own; return the program's folder."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    kernel.call("prctl", kernel.DUMPABLE, 1, 0, 0, 0)  # otherwise its files in /proc are root's
    kinds = kernel.USER | kernel.PIDS | kernel.MOUNTS | kernel.NETWORK | kernel.IPC | kernel.UTS
    kernel.enter(kinds, proc)
    kernel.call("prctl", kernel.DUMPABLE, 0, 0, 0, 0)  # other processes cannot read its memory, where the request is
    options = f"size={megabytes}m,nr_inodes=4096,mode=700"
    kernel.mount("tmpfs", "/tmp", "tmpfs", kernel.NO_SUID | kernel.NO_DEVICES | kernel.NO_EXEC, options)
    return "/tmp"


def _counts_processes(proc: int) -> bool:
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


def _become(request: dict[str, Any], start: Start, folder: int, files: list[int]) -> NoReturn:
    """Turn a fresh fork into the process of the program."""
    try:
        os.setsid()
        os.fchdir(folder)
        kernel.call("prctl", kernel.DUMPABLE, 1, 0, 0, 0)
        with contextlib.suppress(OSError):  # when memory runs out, the kernel kills it before others
            kernel.write("self/oom_score_adj", "1000", start.proc)
        kernel.call("prctl", kernel.DUMPABLE, 0, 0, 0, 0)
        kernel.drop_capabilities()
        if start.readable is not None:
            kernel.restrict(start.readable)
            kernel.restrict(kernel.rules([*start.visible, (folder, kernel.everything())]))
        for number, file in enumerate((*files[2:], files[1])):
            os.dup2(file, number + 100)
        for number in range(4):
            os.dup2(number + 100, number, inheritable=False)
        os.closerange(4, 1 << 16)
        channel = socket.socket(fileno=3)
        kernel.call("prctl", kernel.DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
        candidate.limit(request, start.processes)
        syscalls.install(start.processes)
        candidate.standard_streams()
        candidate.run(request, channel, start.processes)
    finally:
        os._exit(1)


def _watch(child: int, connection: socket.socket, start: Start, most: int) -> int:
    """Wait until the program's process ends, or the caller closes the connection; end everything; return its code.

    The process is the first of its PID namespace, with which the kernel ends all others; in tier `limits` it is alone.
    All of a program together has the share of the processor of one process: the more of it run, the nicer it becomes.
    """
    ended = os.pidfd_open(child)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(connection, select.POLLIN)
    usual = niceness = os.nice(0) + candidate.NICE
    while not poll.poll(TICK * 1000):
        states = list(_states(start.proc, child))
        if not start.processes and len(states) > most:
            break
        wanted = usual + math.ceil(math.log(max(1, states.count("R")), WEIGHT))
        if wanted > niceness:
            niceness = wanted
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.setpriority(os.PRIO_PGRP, child, niceness)
    if not select.select([ended], [], [], 0)[0]:
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _states(proc: int, process: int) -> Iterator[str]:
    """The state of each thread of a process and of the processes that it has started, such as "R" for one that runs."""
    with contextlib.suppress(OSError):  # it has ended
        tasks = os.open(f"{process}/task", os.O_RDONLY, dir_fd=proc)
        try:
            for thread in os.listdir(tasks):
                yield _read(f"{thread}/stat", tasks).rpartition(")")[2].split()[0]
                for child in _read(f"{thread}/children", tasks).split():
                    yield from _states(proc, int(child))
        finally:
            os.close(tasks)


def _read(path: str, folder: int) -> str:
    with open(os.open(path, os.O_RDONLY, dir_fd=folder), encoding="utf-8", errors="replace") as file:
        return file.read()


def remove(folder: int) -> None:
    """Remove what is in an open folder, and the folder where it now is: by its descriptor, not by a path, which a
    program may rename. Folders in it, also thousands of nested ones, are emptied by moving what is in them up."""
    while names := os.listdir(folder):
        for name in names:
            with contextlib.suppress(IsADirectoryError):
                os.unlink(name, dir_fd=folder)
                continue
            inner = _opened(name, folder)
            for entry in os.listdir(inner):
                with contextlib.suppress(NotADirectoryError):
                    os.close(_opened(entry, inner))  # one that cannot be written cannot be moved
                os.rename(entry, os.urandom(16).hex(), src_dir_fd=inner, dst_dir_fd=folder)
            os.close(inner)
            os.rmdir(name, dir_fd=folder)
    with contextlib.suppress(FileNotFoundError):  # another program may have moved it
        above = os.open("..", os.O_PATH | os.O_DIRECTORY, dir_fd=folder)
        name = os.path.basename(os.readlink(f"/proc/self/fd/{folder}"))
        if os.path.samestat(os.stat(name, dir_fd=above, follow_symlinks=False), os.fstat(folder)):
            os.rmdir(name, dir_fd=above)


def _opened(name: str, folder: int) -> int:
    """A descriptor of a folder, whose owner may read and write it from now on."""
    path = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
    try:
        if os.fstat(path).st_mode & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{path}", 0o700)
        return os.open(f"/proc/self/fd/{path}", os.O_RDONLY | os.O_DIRECTORY)
    finally:
        os.close(path)
