"""A tool: run a Python program, and read what it prints.

Limits of time, memory and output keep an unlucky program from harming the run. They are no sandbox: a program can read
the machine's files and its network. Train with this tool in a container that has neither.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import tempfile

SECONDS = 5.0
MEMORY = 1 << 30
LONGEST = 2000
"""Characters of the output that are kept: its end."""

_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)
_RUNNER = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
exec(compile(sys.stdin.read(), "program.py", "exec"), {{"__name__": "__main__"}})
"""


def program_in(text: str) -> str | None:
    """The last fenced block of a text, ```python ... ```; None without one."""
    blocks = _BLOCK.findall(text)
    return str(blocks[-1]) if blocks and blocks[-1].strip() else None


async def run_python(program: str, seconds: float = SECONDS) -> str:
    """What a program prints; where it fails, what it printed and the last line of the error.

    It runs in an interpreter of its own, in an empty folder, without the environment of this process.

    Args:
        seconds: until it and all its children are ended.
    """
    with tempfile.TemporaryDirectory() as folder:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-c", _RUNNER),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=folder,
            env={"OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        try:
            message, errors = await asyncio.wait_for(process.communicate(program.encode()), seconds)
        except TimeoutError:
            return f"TimeoutError: the program took longer than {seconds:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    lines = [message.decode(errors="replace").strip()[-LONGEST:]]
    if process.returncode:
        last = errors.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
        lines += [line[-LONGEST:] for line in last]
    return "\n".join(line for line in lines if line)
