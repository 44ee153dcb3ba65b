"""Python as a tool of an agent, in the sandbox of the run."""

from __future__ import annotations

import asyncio

from marl_verl_sandbox.runs import LIMITS, current


async def run_python(code: str) -> str:
    """Run a Python program and return what it prints.

    Args:
        code: the program; it must print its results.
    """
    status, output, error = await asyncio.to_thread(current().run, code)
    if status is None:
        return f"{output}\nError: the program took longer than {LIMITS.seconds:g} s"
    return output if status == 0 else f"{output}\nError: {error[-2000:] or f'exit code {status}'}"
