"""The checks of `marl-verl selftest`: real runs of the stack on this machine, each with a pass criterion.

Every check runs in a separate process with a time limit, so one that fails or hangs does not stop the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Figures = dict[str, Any]
"""What a check has measured, by name; values are numbers, texts, or lists and mappings of them."""


@dataclass(frozen=True)
class Check:
    """A check of the stack.

    Attributes:
        criterion: what must hold.
        target: "module:function" with the arguments (place, figures); it raises `CriterionError` or `SkippedError`.
        seconds: time limit.
    """

    name: str
    criterion: str
    target: str
    seconds: float


@dataclass(frozen=True)
class Place:
    """The folder of the report, and the hardware: `gpu` is false on a CPU, where `gpus` are logical slots."""

    folder: Path
    gpus: int
    gpu: bool

    @property
    def work(self) -> Path:
        """Models and runs, which are removed after a selftest that has passed."""
        return self.folder / "work"

    def log(self, check: str) -> Path:
        return self.folder / "logs" / f"{check}.log"


@dataclass
class Outcome:
    """The result of a check; `log` has the last lines of its output if it failed."""

    name: str
    criterion: str
    state: Literal["passed", "failed", "skipped"]
    seconds: float
    message: str = ""
    figures: Figures = field(default_factory=dict)
    log: list[str] = field(default_factory=list)


class CriterionError(Exception):
    """The criterion of a check does not hold."""


class SkippedError(Exception):
    """A check cannot run on this machine; the message is the reason."""


def require(holds: bool, otherwise: str) -> None:
    """Raise CriterionError with the message `otherwise` unless `holds`."""
    if not holds:
        raise CriterionError(otherwise)
