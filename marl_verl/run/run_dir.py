"""The run directory."""

from __future__ import annotations

import gzip
import itertools
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from marl_verl.files import read_text
from marl_verl.run.packing import packed

REQUEST = "evaluation.json"
"""The request file in the folder of an evaluation."""

STARTS = "starts.json"
"""The list of the run's starts: the arguments of the command, the machine and its packages."""

EPISODES = (".jsonl.gz", ".jsonl.zst", ".jsonl")  # gzip: of earlier versions
ENDINGS = {"rows": (".json.gz",), "journals": EPISODES, "episodes": EPISODES}
"""Folder -> endings of its stored files; the last ending takes precedence if a step has several files."""

GZIP_LEVEL = 1
"""Of rows: higher levels are slower and save little, because rows are repetitive."""

PACKED = 4 << 20
"""Characters of stored episodes above which their file is compressed; smaller ones can be read as text."""


class RunDir:
    """`runs/<name>/`: configs, plugins.json, starts.json, metrics.jsonl, train.log, data/, episodes/, journals/, rows/,
    checkpoints/, snapshots of past policies, summary.json.

    rows/step_00012.json.gz is the document of step 12 that `marl-verl explain` reads. journals/step_00012.jsonl (.zst
    if it is long) has the episodes of step 12, and episodes/ those of a validation: `marl-verl replay` reads them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def metrics(self, step: int, values: dict[str, float]) -> None:
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")

    def forget_after(self, step: int) -> None:
        """Remove stored metrics and files of later steps, which a resumed run repeats."""
        path = self.folder / "metrics.jsonl"
        if path.is_file():
            lines = read_text(path).splitlines(keepends=True)
            path.write_text("".join(line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= step))
        for later, file in itertools.chain.from_iterable(map(self._files, ENDINGS)):
            if later > step:
                file.unlink()

    def rows(self, step: int, document: dict[str, Any]) -> None:
        """Write a step's `step_document`. Equal documents give equal bytes."""
        content = json.dumps(document, separators=(",", ":")).encode()
        self._write("rows", f"step_{step:05d}.json.gz", [gzip.compress(content, GZIP_LEVEL, mtime=0)])

    def journals(self, step: int, lines: Iterable[str]) -> None:
        """Write the lines of a training step's episodes (`episode.codec`), the header first."""
        self._lines("journals", step, lines)

    def episodes(self, step: int, lines: Iterable[str]) -> None:
        """Write sample episodes of a validation, as `journals`."""
        self._lines("episodes", step, lines)

    def stored_rows(self) -> dict[int, Path]:
        """Step -> the file with its rows, ascending."""
        return dict(self._files("rows"))

    def stored_journals(self) -> dict[int, Path]:
        """Step -> the file with its episodes, ascending."""
        return dict(self._files("journals"))

    def stored_episodes(self) -> dict[int, Path]:
        """Step -> the file with sample episodes of its validation, ascending."""
        return dict(self._files("episodes"))

    def _lines(self, place: str, step: int, lines: Iterable[str]) -> None:
        """Write lines, compressed if they are long. Equal lines give equal bytes."""
        lines, name = list(lines), f"step_{step:05d}.jsonl"
        content = (f"{line}\n".encode() for line in lines)
        if sum(map(len, lines)) <= PACKED:
            self._write(place, name, content)
        else:
            self._write(place, f"{name}.zst", [packed(b"".join(content))])

    def _write(self, place: str, name: str, content: Iterable[bytes]) -> None:
        """Write a file atomically."""
        folder = self.folder / place
        folder.mkdir(exist_ok=True)
        writing = folder / f".writing-{name}"
        with writing.open("wb") as file:
            file.writelines(content)
        os.replace(writing, folder / name)

    def _files(self, place: str) -> list[tuple[int, Path]]:
        """(step, file), sorted by step, then in the order of `ENDINGS`."""
        files = []
        for order, ending in enumerate(ENDINGS[place]):
            for path in (self.folder / place).glob(f"step_*{ending}"):
                step = path.name.removeprefix("step_").removesuffix(ending)
                if step.isdigit():
                    files.append((int(step), order, path))
        return [(step, path) for step, _, path in sorted(files)]
