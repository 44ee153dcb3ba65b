"""Python as a tool of an agent, in the sandbox of the run."""

from __future__ import annotations

import asyncio

from marl_verl_sandbox import Limits, current

from marl_verl.tasks import clipped

LONGEST = 2000
"""Maximum characters of the output."""


async def run_program(program: str) -> str:
    """What a program prints. ValueError with the error's last line if it fails or takes too long."""
    limits = Limits()
    code, output, errors = await asyncio.to_thread(current().run, program, "", limits)
    if code is None:
        raise ValueError(f"the program took longer than {limits.seconds:g} s")
    if code:
        raise ValueError((errors.strip().splitlines() or [f"exit code {code}"])[-1][-LONGEST:])
    return clipped(output.strip(), LONGEST) or "(no output)"
