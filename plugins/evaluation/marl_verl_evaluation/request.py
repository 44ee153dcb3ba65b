"""What an evaluation is: its options, and evaluation.json, which passes who acts with which weights to its process."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec
from marl_verl_inspect.export import Source

from marl_verl.errors import check
from marl_verl.files import read_bytes, write_json
from marl_verl.run.run_dir import REQUEST

RESULT, MODELS = "result.json", "models"
KS = (1, 4, 8, 16, 32, 64)
Swap = tuple[str, str]
Weights = Literal["trained", "untrained", "past", "frozen", "external"]


@dataclass(frozen=True)
class Options:
    """The arguments of `marl_verl.evaluate`, which describes them."""

    step: int | None = None
    tasks: int | None = None
    episodes: int | None = None
    k: Sequence[int] | None = None
    swap: Sequence[Swap] = ()
    untrained: Sequence[str] = ()
    seed: int | None = None
    greedy_only: bool = False
    at_once: int = 256  # an act that waits for a server longer than `marl.rollout.act_seconds` fails
    cross_play: bool | str = False
    steps: Sequence[int] | None = None
    edit: tuple[str, str, str] | None = None

    @property
    def sampled(self) -> int:
        """The number of sampled episodes of each task; 0 for the greedy pass only."""
        usual = 1 if self.edit else 8
        return 0 if self.greedy_only else usual if self.episodes is None else self.episodes

    @property
    def ks(self) -> list[int]:
        """The values of k, ascending."""
        usual = (*(k for k in KS if k < self.sampled), self.sampled)
        return sorted(set(self.k or usual)) if self.sampled and not self.edit else []


@check
def check_options(options: Options) -> Iterator[str]:
    """Refuse options without an effect, which the result would name nevertheless."""
    for name in ("step", "swap", "untrained", "k", "greedy_only", "edit") if options.cross_play else ("steps",):
        if getattr(options, name) != getattr(Options, name):
            without = "with" if options.cross_play else "without"
            yield f"--{name.replace('_', '-')} has no effect {without} --cross-play or --partner: leave it out"
    for name in ("tasks", "k") if options.edit else ():
        if getattr(options, name) is not None:
            yield f"{name}= has no effect on an edited act, which is of one task: leave it out"
    for name in ("tasks", "episodes", "at_once"):
        if (value := getattr(options, name)) is not None and value < 1:
            yield f"--{name.replace('_', '-')} must be 1 or more, got {value}"
    for name in ("k", "episodes") if options.greedy_only else ():
        if getattr(options, name) is not None:
            yield f"--{name} is of the sampled episodes, which --greedy-only skips: leave one of them out"
    for first, second in options.swap:
        if first == second:
            yield f"--swap {first}={second} has no effect: name two agents"
    if any(k not in range(1, options.sampled + 1) for k in options.ks):
        yield f"--k must be whole numbers from 1 to --episodes ({options.sampled}), got {options.k}"


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
        exports: policy -> the source of a model to export to `models/` first.
        sides: of a cross-play: those of its rows and of its columns.
        rows: of the continuations of an edited act, which are played in place of the held-out tasks.
    """

    step: int
    pairings: tuple[Pairing, ...]
    options: Options = Options()
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
