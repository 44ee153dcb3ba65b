"""Tool that runs a Python program in the sandbox and returns its output."""

from __future__ import annotations

import asyncio
import re

from marl_verl_sandbox import Limits, current

SECONDS = 5.0
MEGABYTES = 1024
LONGEST = 2000
"""Maximum characters of the output; its end is kept."""

_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)


def program_in(text: str) -> str | None:
    """The last fenced block of a text, ```python ... ```; None without one."""
    blocks = _BLOCK.findall(text)
    return str(blocks[-1]) if blocks and blocks[-1].strip() else None


async def run_python(program: str, seconds: float = SECONDS) -> str:
    """Run a program in the sandbox and return its output; if it fails, with the last line of the error.

    Args:
        seconds: time limit.
    """
    code, output, errors = await asyncio.to_thread(current().run, program, "", Limits(seconds, MEGABYTES))
    if code is None:
        return f"TimeoutError: the program took longer than {seconds:g} s"
    lines = [output.strip()[-LONGEST:]]
    if code:
        lines += [line[-LONGEST:] for line in errors.strip().splitlines()[-1:] or [f"exit code {code}"]]
    return "\n".join(line for line in lines if line)
