"""What an evaluation is: its options, and evaluation.json, which passes who acts with which weights to its process."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec
from marl_verl_inspect.export import Source

from marl_verl.files import read_bytes, write_json
from marl_verl.run.run_dir import REQUEST

RESULT, MODELS = "result.json", "models"
Weights = Literal["trained", "untrained", "past", "frozen", "external"]


@dataclass(frozen=True)
class Assignment:
    """The policy of an agent: its name `source` in the run and its name `policy` in the evaluation, which differ if one
    agent has the trained and another the untrained weights, or for past versions of `source`."""

    source: str
    weights: Weights
    policy: str
    step: int = 0  # of the checkpoint, or of the snapshot of a past version
    kind: str = ""  # of the policy of past versions

    def describe(self) -> str:
        """A description of the weights for output."""
        step = f"step {self.step}"
        named = {"trained": step, "past": f"snapshot of {step}", "untrained": "before training"}
        return named.get(self.weights, self.weights)


@dataclass(frozen=True)
class Pairing:
    """Agent -> its policy; and of a cross-play the two players, such as "player@20": the row plays the first side, the
    column the second one. Of an edit, the column is the arm."""

    assignments: dict[str, Assignment]
    row: str = ""
    column: str = ""


@dataclass(frozen=True)
class Request:
    """The content of evaluation.json; the result is stored next to it in result.json.

    Attributes:
        step: step of the checkpoint; part of the seeds, as in the validation at that step.
        pairings: those of a cross-play, a partner or an edit; one without names for an evaluation of one team.
        episodes: sampled episodes per task; 0 for the greedy pass only.
        at_once: maximum number of episodes in flight.
        seed: seed of the bootstrap intervals.
        exports: policy -> the source of a model to export to `models/` first.
        sides: of a cross-play: those of its rows and of its columns.
        rows: of the continuations of an edited act, which are played in place of the held-out tasks.
    """

    step: int
    pairings: tuple[Pairing, ...]
    episodes: int = 0
    ks: tuple[int, ...] = ()
    at_once: int = 1
    seed: int = 0
    exports: dict[str, Source] = field(default_factory=dict)
    sides: tuple[str, ...] = ()
    rows: tuple[dict[str, Any], ...] = ()

    @property
    def assignments(self) -> dict[str, Assignment]:
        """Agent -> its policy, in a cross-play that of the first pairing."""
        return self.pairings[0].assignments

    @property
    def policies(self) -> dict[str, Assignment]:
        """Name in the evaluation -> policy, of all pairings."""
        return {used.policy: used for pairing in self.pairings for used in pairing.assignments.values()}

    @property
    def compares(self) -> bool:
        """Whether the result compares pairings, in place of the scores of one team."""
        return self.pairings[0].column != ""

    def write(self, folder: Path) -> None:
        write_json(folder / REQUEST, dataclasses.asdict(self), default=str)  # a path becomes a string

    @classmethod
    def read(cls, folder: Path) -> "Request":
        return msgspec.json.decode(read_bytes(folder / REQUEST), type=cls, dec_hook=lambda kind, value: kind(value))
