"""What an experiment is: the arms that are trained, what is measured, and what the paper says of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tests.benchmarks.results.measures import Measure

FEWEST, MOST = 20, 160
"""Number of seeds of an arm: 0, 1, ... are taken, and twice as many, until each of its statements is decided."""

SHORT = ("marl.task.test_size=100", "trainer.save_freq=-1", "marl.run.keep_journals=0", "marl.run.keep_rows=0")

KEPT = ("marl.run.keep_journals=11", "marl.run.journal_tokens=true", "marl.run.keep_rows=0")  # episodes of step 11


def steps(count: int, every: int) -> tuple[str, ...]:
    return (f"trainer.total_training_steps={count}", f"trainer.test_freq={every}")


@dataclass(frozen=True)
class Arm:
    """One side of a comparison: its name, and the words of `marl-verl train` beside the settings of all arms."""

    name: str
    words: Sequence[str]


@dataclass(frozen=True)
class Comparison:
    """A statement of the claim: `first` has a higher (lower) `measure` than `second` plus `than`, or than `than`.

    `margin`: the paper's difference, in the measure's unit; None: one that does not matter, that of the measure.
    `team`, `take`: what teams it is about, and what they should take if it replicates.
    """

    says: str
    measure: str
    first: str
    second: str | None = None
    claimed: Literal["higher", "lower"] = "higher"
    than: float = 0.0
    margin: float | None = None
    team: str = ""
    take: str = ""


@dataclass(frozen=True)
class Claim:
    """An experiment.

    Attributes:
        name: of the file with its cells, docs/results/NAME.json, and of its plot.
        claim: what the paper says.
        setting: what is trained here.
        settings: overrides of all arms.
        notes: what the numbers mean, a paragraph each.
        most: limit of the number of seeds.
        backend: on which it is trained.
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
    most: int = MOST
    backend: Literal["local", "verl"] = "local"

    def measure(self, key: str) -> Measure:
        return next(measure for measure in self.measures if measure.key == key)

    def command(self, arm: Arm, seed: int | str) -> list[str]:
        """The command of a cell, as a reader would type it."""
        return ["marl-verl", "train", *arm.words, *self.settings, f"marl.run.seed={seed}"]
