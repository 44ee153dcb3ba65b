"""The run directory and the events that the command line shows: everything a run leaves behind has its place here."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

EVENTS_VARIABLE = "MARL_VERL_EVENTS"
"""File descriptor on which the trainer tells the command line what it does, one JSON object a line."""

GZIP_LEVEL = 1
"""Rows repeat themselves so much that more would cost time and save little."""


class RunDir:
    """`runs/<name>/`: configs, plugins.json, metrics.jsonl, train.log, data/, episodes/, rows/, checkpoints/,
    summary.json.

    rows/step_00012.json.gz holds what the advantages of step 12 were computed from, and the advantages: the document
    that `marl-verl explain` reads.
    """

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
        """Drop what metrics.jsonl and rows/ have beyond a step: a continued run takes these steps again."""
        path = self.folder / "metrics.jsonl"
        if path.is_file():
            lines = path.read_text().splitlines(keepends=True)
            path.write_text("".join(line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= step))
        for later, rows in self.stored_rows().items():
            if later > step:
                rows.unlink()

    def rows(self, step: int, document: dict[str, Any]) -> None:
        """Write a step's rows and advantages (`marl_verl.explain.step_document`): all of the file, or none of it.

        The same document gives the same bytes.
        """
        folder = self.folder / "rows"
        folder.mkdir(exist_ok=True)
        name = f"step_{step:05d}.json.gz"
        content = json.dumps(document, separators=(",", ":")).encode()
        writing = folder / f".writing-{name}"
        writing.write_bytes(gzip.compress(content, GZIP_LEVEL, mtime=0))
        os.replace(writing, folder / name)

    def stored_rows(self) -> dict[int, Path]:
        """Step -> the file with its rows, ascending."""
        found = (self.folder / "rows").glob("step_*.json.gz")
        steps = {path: path.name.removeprefix("step_").removesuffix(".json.gz") for path in found}
        return dict(sorted((int(step), path) for path, step in steps.items() if step.isdigit()))

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
