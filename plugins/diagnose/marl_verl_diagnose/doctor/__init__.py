"""The checks of `marl-verl doctor`, one module per subject. All checks are read-only."""

from dataclasses import dataclass
from functools import partial
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        check: the name of the check, one or two words.
        message: what was found, and its consequence.
        do: what to do, a command if possible; "" if the state is ok.
        state: "error" if no run can work, "warning" if some runs cannot work or are slow.
    """

    check: str
    message: str
    do: str = ""
    state: Literal["ok", "warning", "error"] = "ok"


ok, warning, error = Finding, partial(Finding, state="warning"), partial(Finding, state="error")
