"""The run directory and the events that the command line shows: everything a run leaves behind has its place here."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

EVENTS_VARIABLE = "MARL_VERL_EVENTS"
"""File descriptor on which the trainer tells the command line what it does, one JSON object a line."""


class RunDir:
    """`runs/<name>/`: configs, plugins.json, metrics.jsonl, train.log, data/, episodes/, checkpoints/, summary.json."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def metrics(self, step: int, values: dict[str, float]) -> None:
        """Append one line to metrics.jsonl."""
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")

    def forget_after(self, step: int) -> None:
        """Drop the lines of metrics.jsonl beyond a step: a continued run takes these steps again."""
        path = self.folder / "metrics.jsonl"
        if path.is_file():
            lines = path.read_text().splitlines(keepends=True)
            path.write_text("".join(line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= step))

    def episodes(self, step: int, episodes: list[dict[str, Any]]) -> None:
        """Write sample episodes of a validation, one JSON line each."""
        folder = self.folder / "episodes"
        folder.mkdir(exist_ok=True)
        (folder / f"step_{step:05d}.jsonl").write_text("".join(json.dumps(episode) + "\n" for episode in episodes))


def emit(event: str, **values: Any) -> None:
    """Tell the command line. Without one (a trainer started by hand) nothing is told."""
    descriptor = os.environ.get(EVENTS_VARIABLE)
    if descriptor:
        os.write(int(descriptor), (json.dumps({"event": event, **values}, default=float) + "\n").encode())
