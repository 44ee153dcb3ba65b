"""Tool that runs a Python program and returns its output.

Limits on time, memory and output keep a faulty program from harming the run. They are not a sandbox: a program can
access the machine's files and network. Train with this tool in a container without either.
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
"""Maximum characters of the output; its end is kept."""

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
    """Run a program and return its output; if it fails, with the last line of the error.

    It runs in a separate interpreter, in an empty folder, without the environment of this process.

    Args:
        seconds: time limit, after which the program and its children are killed.
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
            output, errors = await asyncio.wait_for(process.communicate(program.encode()), seconds)
        except TimeoutError:
            return f"TimeoutError: the program took longer than {seconds:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    lines = [output.decode(errors="replace").strip()[-LONGEST:]]
    if process.returncode:
        last = errors.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
        lines += [line[-LONGEST:] for line in last]
    return "\n".join(line for line in lines if line)
