"""What `marl-verl doctor` checks, one subject a file. Nothing here changes anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


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
    state: Literal["ok", "warning", "error"]
    message: str
    do: str = ""


def ok(check: str, message: str) -> Finding:
    return Finding(check, "ok", message)


def warning(check: str, message: str, do: str) -> Finding:
    return Finding(check, "warning", message, do)


def error(check: str, message: str, do: str) -> Finding:
    return Finding(check, "error", message, do)
