"""Breakpoints in the code of users: a debugger on the terminal, and time limits that wait for it.

In a context of `breakpoints`, the first `breakpoint()` marks the process as being debugged, for its whole life: limits
that expire from then on are ignored: the user is at the prompt.
"""

from __future__ import annotations

import asyncio
import os
import pdb
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_attached = threading.Event()
_prompt = threading.RLock()  # one thread at a time reads the terminal


def attached() -> bool:
    """Whether a debugger has stopped this process."""
    return _attached.is_set()


class Limit(asyncio.Timeout):  # type: ignore[misc]
    """As `asyncio.timeout(seconds)`, ignored in a process that is being debugged."""

    def __init__(self, seconds: float | None) -> None:
        super().__init__(None if seconds is None else asyncio.get_running_loop().time() + seconds)

    def _on_timeout(self) -> None:
        if not attached():
            super()._on_timeout()  # type: ignore[misc]


@contextmanager
def breakpoints(stopped: Callable[[], object] | None) -> Iterator[None]:
    """In this context `breakpoint()` calls `stopped` and opens a prompt; with None it does nothing.

    PYTHONBREAKPOINT chooses another debugger, as everywhere in Python.
    """
    previous = sys.breakpointhook

    def stop(*arguments: Any, **options: Any) -> Any:
        if stopped is None:
            return None
        _attached.set()
        stopped()
        if os.environ.get("PYTHONBREAKPOINT") or previous is not sys.__breakpointhook__:
            return previous(*arguments, **options)
        return _Debugger(nosigint=True).set_trace(sys._getframe(1))

    sys.breakpointhook = stop
    try:
        yield
    finally:
        sys.breakpointhook = previous


class _Debugger(pdb.Pdb):
    """`quit` ends the run, as Ctrl-C does: an exception in the code at hand would only fail an episode."""

    _quits = False

    def interaction(self, *arguments: Any) -> None:
        with _prompt:
            super().interaction(*arguments)
        if self._quits:  # not earlier: the prompt ignores Ctrl-C
            signal.raise_signal(signal.SIGINT)

    def do_quit(self, argument: str) -> bool:
        self._quits = True
        self.set_continue()
        return True

    do_q = do_exit = do_EOF = do_quit  # type: ignore[assignment]
