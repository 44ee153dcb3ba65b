"""What an experiment is: the arms that are trained, what is measured, and what the paper says of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tests.benchmarks.results.measures import Measure

SEEDS = (0, 1, 2, 3, 4)

SHORT = ("marl.task.test_size=100", "trainer.save_freq=-1", "marl.run.keep_journals=0", "marl.run.keep_rows=0")

KEPT = ("marl.run.keep_journals=11", "marl.run.journal_tokens=true", "marl.run.keep_rows=0")  # episodes of step 11


def steps(count: int, every: int) -> tuple[str, ...]:
    return (f"trainer.total_training_steps={count}", f"trainer.test_freq={every}")


@dataclass(frozen=True)
class Arm:
    """One side of a comparison.

    Attributes:
        name: in the stored cells, and in the table.
        command: the script or command that trains it, relative to the repository, with its own overrides.
    """

    name: str
    command: Sequence[str]


@dataclass(frozen=True)
class Comparison:
    """A statement of the claim: `first` has a higher (lower) `measure` than `second`, or than `than` without it."""

    says: str
    measure: str
    first: str
    second: str | None = None
    claimed: Literal["higher", "lower"] = "higher"
    than: float = 0.0


@dataclass(frozen=True)
class Claim:
    """An experiment.

    Attributes:
        name: of the file with its cells, docs/results/NAME.json.
        claim: what the paper says.
        setting: what is trained here.
        settings: overrides of all arms.
        notes: what the numbers mean, a paragraph each.
    """

    name: str
    title: str
    claim: str
    setting: str
    arms: Sequence[Arm]
    measures: Sequence[Measure]
    comparisons: Sequence[Comparison]
    settings: Sequence[str] = ()
    notes: Sequence[str] = ()

    def command(self, arm: Arm, seed: int | str) -> list[str]:
        """The command of a cell, as a reader would type it."""
        return [*arm.command, *self.settings, f"marl.run.seed={seed}"]
