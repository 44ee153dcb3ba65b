"""The Python program in an agent's text; it runs in the sandbox."""

from __future__ import annotations

import re

from marl_verl_sandbox import run_python

__all__ = ["program_in", "run_python"]

_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)


def program_in(text: str) -> str | None:
    """The last fenced block of a text, ```python ... ```; None without one."""
    blocks = _BLOCK.findall(text)
    return str(blocks[-1]) if blocks and blocks[-1].strip() else None
