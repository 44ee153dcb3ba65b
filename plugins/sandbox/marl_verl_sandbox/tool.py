"""Python as a tool of an agent, in the sandbox of the run."""

from __future__ import annotations

import asyncio

from marl_verl_sandbox.pool import Limits
from marl_verl_sandbox.runs import current


async def run_python(code: str) -> str:
    """Run a Python program and return what it prints.

    Args:
        code: the program; it must print its results.
    """
    status, output, error = await asyncio.to_thread(current().run, code, "", Limits())
    if status is None:
        return f"{output}\nError: the program took longer than {Limits().seconds:g} s"
    return output if status == 0 else f"{output}\nError: {error[-2000:] or f'exit code {status}'}"
