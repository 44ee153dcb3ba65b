"""Python as a tool of an agent, in the sandbox of the run."""

import asyncio
import re

from marl_verl_sandbox.pool import Limits
from marl_verl_sandbox.runs import current

SECONDS, MEGABYTES = 5.0, 1024
LONGEST = 2000  # maximum characters of the output; its end is kept
_FENCED = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)


def program_in(text: str) -> str:
    """The last fenced block of a text without its fences; empty without one, or where it is not closed."""
    blocks = _FENCED.findall(text)
    return str(blocks[-1]).rstrip() if blocks else ""


async def run_python(code: str, seconds: float = SECONDS, strict: bool = False) -> str:
    """Run a Python program and return what it prints; if it fails, with the last line of the error.

    Args:
        code: the program; it must print its results.
        seconds: time limit.
        strict: raise ValueError with that line instead.
    """
    status, output, errors = await asyncio.to_thread(current().run, code, "", Limits(seconds, MEGABYTES))
    error = (errors.strip().splitlines() or [f"exit code {status}"])[-1][-LONGEST:] if status else ""
    if status is None:
        output, error = "", f"TimeoutError: the program took longer than {seconds:g} s"
    if error and strict:
        raise ValueError(error)
    return "\n".join(filter(None, (output.strip()[-LONGEST:], error)))
