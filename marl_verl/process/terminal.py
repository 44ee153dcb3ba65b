"""What commands print."""

from __future__ import annotations

import io
import os
import re
import sys

from marl_verl.errors import MarlError

# of a terminal's own language; the line break and the tab mean what they say. Then what breaks a line or turns the
# direction of text round, so that it reads as another
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def show(message: str) -> None:
    """To standard output; a reader that has enough, such as `head`, is no error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names are the user's, the terminal's encoding is not
    try:
        print(message, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains again when it ends
        if not isinstance(error, BrokenPipeError):
            raise MarlError(f"standard output cannot be written to: {error.strerror}") from error


def harmless(text: str) -> str:
    """A text that somebody else wrote, for a terminal: control characters as their escapes."""
    return _CONTROLS.sub(lambda found: repr(found.group())[1:-1], text)
