"""What `marl-verl doctor` checks, one subject a file. Nothing here changes anything.

packages.py   Python, and the versions of what is installed
imports.py    whether torch, vLLM and verl load, each in a process of its own
machine.py    GPUs, memory, disk, shared memory, what dead runs left
plugins.py    every plugin, each in a process of its own
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        check: what was looked at, in a word or two.
        state: "error" where no run can work, "warning" where some cannot, or not well.
        said: what was found, and what it means.
        do: what to do about it, a command where there is one; "" where it is ok.
    """

    check: str
    state: State
    said: str
    do: str = ""


def ok(check: str, said: str) -> Finding:
    """Nothing to do."""
    return Finding(check, "ok", said)


def warning(check: str, said: str, do: str) -> Finding:
    """Some runs cannot work, or not well."""
    return Finding(check, "warning", said, do)


def error(check: str, said: str, do: str) -> Finding:
    """No run can work."""
    return Finding(check, "error", said, do)
