"""Breakpoints and Ctrl-C of a run in this process."""

import asyncio
import os
import pdb
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from marl_verl.threads import ATTACHED

_prompt = threading.RLock()  # one thread at a time reads the terminal


@contextmanager
def breakpoints(stopped: Callable[[], object]) -> Iterator[None]:
    """In this context `breakpoint()` calls `stopped` and opens a prompt, or another debugger of PYTHONBREAKPOINT.
    The first one marks the process as being debugged, for its whole life: limits are ignored from then on."""
    previous = sys.breakpointhook

    def stop(*arguments: Any, **options: Any) -> Any:
        ATTACHED.set()
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

    def set_quit(self) -> None:
        self._quits = True
        self.set_continue()


@contextmanager
def interrupted_at_once() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt where the main thread is; asyncio's own handler waits for a blocked task."""

    def interrupt_now(*_: object) -> None:
        raise KeyboardInterrupt

    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not usual or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, interrupt_now)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def reported_unless_interrupted(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """If nobody awaits a task, report its error, except a KeyboardInterrupt that `interrupted_at_once` raised."""
    if not isinstance(context.get("exception"), KeyboardInterrupt):
        loop.default_exception_handler(context)
