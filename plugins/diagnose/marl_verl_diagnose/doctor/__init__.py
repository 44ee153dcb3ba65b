"""The checks of `marl-verl doctor`, one module per subject. All checks are read-only."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        check: the name of the check, one or two words.
        state: "error" if no run can work, "warning" if some runs cannot work or are slow.
        message: what was found, and its consequence.
        do: what to do, a command if possible; "" if the state is ok.
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
