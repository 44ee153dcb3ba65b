"""Output of commands to the terminal."""

import io
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from marl_verl.errors import MarlError

# Control characters that a terminal interprets, except tab and line break; then Unicode line separators and characters
# that change the direction of text.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """In this context, SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does. One that is ignored (SIGHUP under
    nohup) remains ignored. Python handles signals in the main thread only: in another one the context changes nothing.
    """
    numbers = [signal.SIGTERM, signal.SIGHUP] if threading.current_thread() is threading.main_thread() else []
    numbers = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    previous = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def show(message: str) -> None:
    """Print to standard output. A closed pipe (`| head`) is not an error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # for names outside the terminal's encoding
    with writing():
        print(message, flush=True)


@contextmanager
def writing() -> Iterator[None]:
    """MarlError if standard output cannot be written, e.g. to a full disk. Later output is discarded then, and without
    an error if its reader has ended: Python would fail at exit."""
    try:
        yield
    except OSError as error:
        discard(sys.stdout)
        if not isinstance(error, BrokenPipeError):
            raise MarlError(f"cannot write to standard output: {error.strerror}") from error


def discard(output: IO[str]) -> None:
    """Discard what is still written to an output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())


def harmless(text: str) -> str:
    """Escape the control characters of an untrusted text for output to a terminal."""
    return _CONTROLS.sub(lambda match: repr(match.group())[1:-1], text)


def indented(text: str, spaces: int) -> list[str]:
    """The lines of a text, indented."""
    return [f"{' ' * spaces}{line}".rstrip() for line in text.split("\n")]
