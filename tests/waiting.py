"""Wait for what another thread or process does, with a limit."""

import time
from collections.abc import Callable

import psutil


def wait_until(condition: Callable[[], object], seconds: float = 30.0, what: object = "") -> None:
    """Return once a condition holds; it fails after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether a process runs. A zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
