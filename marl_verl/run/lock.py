"""The lock of a run directory: one process at a time trains, resumes or evaluates a run."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from marl_verl.errors import MarlError
from marl_verl.files import read_bytes

LOCK = ".lock"


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Hold the lock of a run directory. Yields its file descriptor: the lock lasts while any process has it open.

    The file is never removed, because another process might have opened it already.

    Raises:
        MarlError: another process holds the lock; its process id is in the message.
    """
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 100).decode(errors="replace").strip() or "unknown"
            raise MarlError(
                f"run directory '{folder}' is in use by process {holder}, which trains or evaluates it. "
                "Wait until it has ended, or stop it with Ctrl-C."
            ) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()} on {os.uname().nodename}\n".encode())
        yield descriptor
    finally:
        os.close(descriptor)


def is_running(folder: Path) -> bool:
    """Whether a process holds the run's lock; also True where that is unknown, e.g. on another machine."""
    path = folder / LOCK
    try:
        inode, node = path.stat().st_ino, read_bytes(path).decode(errors="replace").partition(" on ")[2].strip()
        # The list of locks, since a run that starts while this check holds even a shared lock would fail. Its devices
        # are not compared: those of some file systems differ from st_dev.
        held = Path("/proc/locks").read_text()
    except FileNotFoundError:
        return path.is_file()
    except (OSError, MarlError):
        return True
    return node not in ("", os.uname().nodename) or re.search(rf"FLOCK .*:{inode} ", held) is not None
