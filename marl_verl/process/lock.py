"""The lock of a run directory: one process at a time trains, resumes or evaluates a run."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from marl_verl.errors import MarlError

LOCK = ".lock"


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Hold the lock of a run directory. Yields its file descriptor: the lock lasts while any process has it open.

    The file is never removed, because another process might have opened it already.

    Raises:
        MarlError: another process holds the lock; its process id is in the message.
    """
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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
