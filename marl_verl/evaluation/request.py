"""What the command line asks of the process that plays: evaluation.json. The answer is in result.json beside it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path

from marl_verl.checkpoint.export import Source
from marl_verl.evaluation.cast import Part
from marl_verl.process.run_dir import REQUEST

RESULT, MODELS = "result.json", "models"


@dataclass(frozen=True)
class Request:
    """What to play.

    Attributes:
        step: of the checkpoint; it enters the seeds, as in the validation at that step.
        sessions: sampled of each task; 0 for the greedy pass alone.
        ks: of pass@k.
        seed: of the intervals.
        parts: agent -> the policy that it acts with.
        exports: policy -> what a model that servers can read has to be made of first, below `models/`.
    """

    step: int
    sessions: int
    ks: tuple[int, ...]
    seed: int
    parts: dict[str, Part]
    exports: dict[str, Source] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Into an evaluation's folder."""
        said = json.dumps(dataclasses.asdict(self), indent=1, default=str)  # a path is a text
        (folder / REQUEST).write_text(said + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Request:
        """What `write` wrote."""
        data = json.loads((folder / REQUEST).read_text(encoding="utf-8"))
        parts = {agent: Part(**part) for agent, part in data.pop("parts").items()}
        exports = {
            policy: Source(**{**source, "folder": Path(source["folder"])})
            for policy, source in data.pop("exports").items()
        }
        return cls(parts=parts, exports=exports, ks=tuple(data.pop("ks")), **data)
