"""Run resources (processes, scratch folder, shared memory, sockets of a run on this machine) and their cleanup.

Every process of a run has the run's id in its environment, and belongs to the session that the trainer leads. The
command line cleans up at the end of a run. If it was killed, the trainer starts `python -m marl_verl.run.cleanup
SCRATCH`; if both were killed, the next run on this machine does. A record in the scratch folder says whose it is.
"""

import contextlib
import os
import platform
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NoReturn

import msgspec
import psutil

from marl_verl.config.hardware import RANKS_A_RUN, RUN_VARIABLE, first_rank_of
from marl_verl.events import SCRATCH_VARIABLE
from marl_verl.files import write_json

PREFIX = "marl-"
RECORD = "run.json"
SHARED = "/dev/shm/"
SOCKETS = "rl-colocate-zmq-*-replica-*-rank-*.sock"  # of verl's weight sync, in /tmp regardless of TMPDIR

LONGEST = 107 - len("/marl-12345678/ray/session_2026-01-01_00-00-00_123456_1234567/sockets/plasma_store")
"""Bytes of the folder of scratch folders: the kernel allows 107 in the path of a socket, and Ray makes one there."""


def scratch_parent() -> Path:
    """The folder of scratch folders: the one for temporary files (TMPDIR), or /tmp where its path is too long."""
    folder = tempfile.gettempdir()
    return Path(folder if len(os.fsencode(folder)) <= LONGEST else "/tmp")


@dataclass(frozen=True)
class Process:
    """A process of this machine, distinguished from later ones with the same id by its start time."""

    pid: int
    created: float

    @classmethod
    def of(cls, pid: int) -> "Process":
        return cls(pid, psutil.Process(pid).create_time())

    def alive(self) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            return Process.of(self.pid) == self and _alive(psutil.Process(self.pid))
        return False


@dataclass
class RunResources:
    """The resources of one run on this machine."""

    run: str
    scratch: str  # a folder for Ray's session, sockets and temporary files, and for this record
    machine: str  # `_machine()` of the run; process ids are valid only there
    command: Process  # started the trainer
    trainer: Process | None = None  # leads the session of the run's processes
    before: list[str] = field(default_factory=list)  # `_loose` files from before the run
    shared_memory: list[str] = field(default_factory=list)  # of the run's processes, which stays if they are killed

    @classmethod
    def begin(cls, run: str) -> "RunResources":
        """Make the scratch folder of a run that this process starts."""
        scratch = tempfile.mkdtemp(prefix=PREFIX, dir=scratch_parent())  # private to this user (0700)
        resources = cls(run, scratch, _machine(), Process.of(os.getpid()), before=sorted(map(str, _loose())))
        resources.write()
        return resources

    @classmethod
    def read(cls, scratch: Path) -> "RunResources":
        """Raises OSError, ValueError or MsgspecError if the record cannot be read, or if others can write to it."""
        folder, record = scratch.lstat(), (scratch / RECORD).lstat()
        ours = stat.S_ISDIR(folder.st_mode) and stat.S_ISREG(record.st_mode)
        if not ours or folder.st_mode & 0o022 or {folder.st_uid, record.st_uid} != {os.getuid()}:
            raise PermissionError(f"'{scratch}' is not a folder that only this user can write to")
        return replace(msgspec.json.decode((scratch / RECORD).read_bytes(), type=cls), scratch=str(scratch))

    def write(self) -> None:
        write_json(Path(self.scratch, RECORD), asdict(self))

    def note_shared_memory(self) -> None:
        self.shared_memory = sorted({*self.shared_memory, *map(str, _held(self.processes()))})
        self.write()

    def processes(self) -> list[psutil.Process]:
        """The run's processes on this machine, without the command line, the trainer included."""
        processes = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.pid not in (os.getpid(), self.command.pid) and self._has(process) and _alive(process):
                    processes.append(process)
        return processes

    def _has(self, process: psutil.Process) -> bool:
        """Whether a process belongs to the run: by session (its title may hide its environment) or environment."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self.trainer is not None and os.getsid(process.pid) == self.trainer.pid:
                # false if the trainer's id was reused by the leader of another session
                return not psutil.pid_exists(self.trainer.pid) or Process.of(self.trainer.pid) == self.trainer
        return bool(process.environ().get(RUN_VARIABLE) == self.run)

    def abandoned(self) -> bool:
        """Whether the processes that would have cleaned up are gone, on this machine."""
        owners = (self.command, self.trainer)
        return self.machine == _machine() and not any(owner.alive() for owner in owners if owner is not None)

    def cleanup(self, others: Iterable[psutil.Process] = ()) -> str:
        """End every process of the run and the `others`, then remove their files. Returns the scratch folder.

        Python's resource trackers ignore SIGTERM: they end after their process, whose shared memory they remove.
        """
        others = list(others)
        held = _held([*self.processes(), *others])
        for number in (signal.SIGTERM, signal.SIGKILL):
            running = {*self.processes(), *filter(_alive, others)}
            for process in running:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(number)
            psutil.wait_procs(running, timeout=3)
        loose = _loose() - set(map(Path, self.before)) - _held(psutil.process_iter())
        for path in filter(_removable, {*map(Path, self.shared_memory), *held, *loose, *_sockets(self.run)}):
            path.unlink(missing_ok=True)
        shutil.rmtree(self.scratch, ignore_errors=True)
        return self.scratch


def abandoned() -> list[RunResources]:
    """The resources of killed runs of this user on this machine."""
    records = []
    for scratch in sorted(scratch_parent().glob(f"{PREFIX}*")):
        # another folder than that of a run, or one that is being removed
        with contextlib.suppress(OSError, ValueError, msgspec.MsgspecError):
            records.append(RunResources.read(scratch))
    return [resources for resources in records if resources.abandoned()]


def _machine() -> str:
    """An id of this boot of this machine, and on Linux of this container, within which process ids are valid."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{platform.node()} {psutil.boot_time():.0f}"


def _loose() -> set[Path]:
    """Python's named semaphores and verl's weight buffers, removable if no process holds them (Linux; else none)."""
    return {path for kind in ("sem.mp-*", "verl_weights_*") for path in Path(SHARED).glob(kind)}


def _held(processes: Iterable[psutil.Process]) -> set[Path]:
    """The shared memory and the semaphores that processes hold (Linux; elsewhere none). By inode: the maps of a process
    list a semaphore under an earlier, temporary name."""
    inodes = set()
    for process in processes:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines():
                if SHARED in line:
                    inodes.add(int(line.split()[4]))
    return {Path(entry) for entry in os.scandir(SHARED) if entry.inode() in inodes} if inodes else set()


def _sockets(run: str) -> set[Path]:
    """The run's weight-sync sockets: their replica ranks are in its range (`backend/verl/verl_plugin.py`)."""
    first = first_rank_of(run)
    ranks = {path: path.name.partition("-replica-")[2].partition("-rank-")[0] for path in Path("/tmp").glob(SOCKETS)}
    return {path for path, rank in ranks.items() if rank.isdigit() and first <= int(rank) < first + RANKS_A_RUN}


def _removable(path: Path) -> bool:
    """Whether a path is a file or socket of this user directly in /dev/shm or /tmp, and no link."""
    with contextlib.suppress(OSError):
        status = path.lstat()
        kind = stat.S_ISREG(status.st_mode) or stat.S_ISSOCK(status.st_mode)
        return kind and status.st_uid == os.getuid() and str(path.parent) in (SHARED.rstrip("/"), "/tmp")
    return False


def _alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


class Parent:
    """The process that started the trainer, unless the trainer was started by hand, without a scratch folder."""

    def __init__(self) -> None:
        self.scratch = os.environ.get(SCRATCH_VARIABLE)
        self._pid = RunResources.read(Path(self.scratch)).command.pid if self.scratch else os.getppid()

    def follow(self) -> None:
        """Make SIGTERM interrupt the trainer as Ctrl-C does, and end the trainer when the parent ends."""
        signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
        if self.scratch:
            threading.Thread(target=self._wait, name="parent", daemon=True).start()

    def gone(self) -> bool:
        return self.scratch is not None and os.getppid() != self._pid

    def leave(self, code: int) -> NoReturn:
        """End this process immediately, even if other threads are blocked.

        If the parent is gone, start the cleanup in a new process, because it also ends this process.
        """
        if self.scratch and self.gone():
            print("the command line has ended: stopping the run and removing its leftovers", file=sys.stderr)
            command = [sys.executable, "-m", "marl_verl.run.cleanup", self.scratch]
            free = {name: value for name, value in os.environ.items() if name not in (RUN_VARIABLE, "TMPDIR")}
            subprocess.Popen(command, env=free, cwd="/", stdin=subprocess.DEVNULL, start_new_session=True)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def _wait(self) -> None:
        while not self.gone():
            time.sleep(0.5)
        self.leave(1)


if __name__ == "__main__":
    RunResources.read(Path(sys.argv[1])).cleanup()
