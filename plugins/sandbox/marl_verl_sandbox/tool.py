"""Python as a tool of an agent, in the sandbox of the run."""

import asyncio

from marl_verl_sandbox.pool import Limits
from marl_verl_sandbox.runs import current

SECONDS, MEGABYTES = 5.0, 1024
LONGEST = 2000
"""Maximum characters of the output; its end is kept."""


async def run_python(code: str, seconds: float = SECONDS) -> str:
    """Run a Python program and return what it prints; if it fails, with the last line of the error.

    Args:
        code: the program; it must print its results.
        seconds: time limit.
    """
    status, output, errors = await asyncio.to_thread(current().run, code, "", Limits(seconds, MEGABYTES))
    if status is None:
        return f"TimeoutError: the program took longer than {seconds:g} s"
    lines = [output.strip()[-LONGEST:]]
    if status:
        lines += [line[-LONGEST:] for line in errors.strip().splitlines()[-1:] or [f"exit code {status}"]]
    return "\n".join(line for line in lines if line)
