"""The run directory and the events that the command line shows: everything a run leaves behind has its place here."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

EVENTS_VARIABLE = "MARL_VERL_EVENTS"
"""File descriptor on which the trainer tells the command line what it does, one JSON object a line."""

REQUEST = "evaluation.json"
"""In the folder of an evaluation: what is to be evaluated."""

ROWS = (".json.gz",)
EPISODES = (".jsonl.gz", ".jsonl")
"""Endings of stored files; the last one counts where a step has several."""

GZIP_LEVEL = 1
"""Rows repeat themselves so much that more would cost time and save little."""


class RunDir:
    """`runs/<name>/`: configs, plugins.json, metrics.jsonl, train.log, data/, episodes/, journals/, rows/,
    checkpoints/, summary.json.

    rows/step_00012.json.gz holds what the advantages of step 12 were computed from, and the advantages: the document
    that `marl-verl explain` reads. journals/step_00012.jsonl holds the episodes of step 12, and episodes/ those of a
    validation: the files that `marl-verl replay` reads, also where somebody has packed them with gzip.
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
        """Drop what is stored beyond a step: a continued run takes these steps again."""
        path = self.folder / "metrics.jsonl"
        if path.is_file():
            lines = path.read_text().splitlines(keepends=True)
            path.write_text("".join(line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= step))
        for place, endings in (("rows", ROWS), ("journals", EPISODES), ("episodes", EPISODES)):
            for later, file in self._files(place, endings):
                if later > step:
                    file.unlink()

    def rows(self, step: int, document: dict[str, Any]) -> None:
        """Write a step's rows and advantages (`marl_verl.algorithms.algorithm.step_document`).

        The same document gives the same bytes.
        """
        content = json.dumps(document, separators=(",", ":")).encode()
        self._write("rows", f"step_{step:05d}.json.gz", gzip.compress(content, GZIP_LEVEL, mtime=0))

    def journals(self, step: int, lines: Iterable[str]) -> None:
        """Write a training step's episodes (`marl_verl.journals`): the header's line, then theirs."""
        self._write("journals", f"step_{step:05d}.jsonl", _lines(lines))

    def episodes(self, step: int, lines: Iterable[str]) -> None:
        """Write sample episodes of a validation, as `journals`."""
        self._write("episodes", f"step_{step:05d}.jsonl", _lines(lines))

    def stored_rows(self) -> dict[int, Path]:
        """Step -> the file with its rows, ascending."""
        return dict(self._files("rows", ROWS))

    def stored_journals(self) -> dict[int, Path]:
        """Step -> the file with its episodes, ascending."""
        return dict(self._files("journals", EPISODES))

    def stored_episodes(self) -> dict[int, Path]:
        """Step -> the file with sample episodes of its validation, ascending."""
        return dict(self._files("episodes", EPISODES))

    def _write(self, place: str, name: str, content: bytes) -> None:
        """All of a file, or none of it."""
        folder = self.folder / place
        folder.mkdir(exist_ok=True)
        writing = folder / f".writing-{name}"
        writing.write_bytes(content)
        os.replace(writing, folder / name)

    def _files(self, place: str, endings: tuple[str, ...]) -> list[tuple[int, Path]]:
        """(step, file), by step; of one step in the order of `endings`."""
        found = []
        for order, ending in enumerate(endings):
            for path in (self.folder / place).glob(f"step_*{ending}"):
                step = path.name.removeprefix("step_").removesuffix(ending)
                if step.isdigit():
                    found.append((int(step), order, path))
        return [(step, path) for step, _, path in sorted(found)]


def _lines(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def emit(event: str, **values: Any) -> None:
    """Tell the command line. Without one (a trainer started by hand) nothing is told."""
    descriptor = os.environ.get(EVENTS_VARIABLE)
    if descriptor:
        os.write(int(descriptor), (json.dumps({"event": event, **values}, default=float) + "\n").encode())
