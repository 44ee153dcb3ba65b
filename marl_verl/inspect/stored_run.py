"""A run directory as Python values: metrics, summary, config, checkpoints, episodes, rows."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from marl_verl.checkpoint.files import complete, step_of
from marl_verl.episode import Episode
from marl_verl.inspect.files import unpacked
from marl_verl.journals.read import EpisodeFile
from marl_verl.process.run_dir import RunDir

if TYPE_CHECKING:
    from omegaconf import DictConfig

T = TypeVar("T")


class Run(os.PathLike[str]):
    """A run directory. Everything is read when it is asked for, so a run that still trains shows its latest state.

    It can be used wherever a path can, e.g. `evaluate(run)`, `train(resume=run)`, `Path(run)`; `folder` is its path.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._files = RunDir(self.folder)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    def __fspath__(self) -> str:
        return str(self.folder)

    @property
    def metrics(self) -> list[dict[str, float]]:
        """metrics.jsonl: a record per training step and per validation, each with its `step`; see docs/metrics.md."""
        path = self.folder / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.is_file() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]  # the last one may be half written

    @property
    def summary(self) -> dict[str, Any] | None:
        """summary.json, e.g. `summary["success_after"]`; None until training has finished."""
        path = self.folder / "summary.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    @property
    def config(self) -> DictConfig:
        """config.yaml: every option of the run, resolved, e.g. `config.marl.run.seed`."""
        from marl_verl.config.stored import check_run, read_config

        check_run(self.folder, "config.yaml")
        return read_config(self.folder / "config.yaml")

    @property
    def checkpoints(self) -> dict[int, Path]:
        """Step -> folder, of every complete checkpoint, ascending."""
        return {step_of(path): path for path in complete(self._files.checkpoints)}

    @property
    def episodes(self) -> Mapping[int, list[Episode]]:
        """Step -> the training episodes of the step that are stored (`marl.run.keep_journals`), read on access."""
        return _Steps(self._files.stored_journals(), _episodes)

    @property
    def validations(self) -> Mapping[int, list[Episode]]:
        """Step -> sample episodes of the validation (`marl.rollout.keep_episodes`), read on access."""
        return _Steps(self._files.stored_episodes(), _episodes)

    @property
    def rows(self) -> Mapping[int, dict[str, Any]]:
        """Step -> the document that `explain` takes: the rows of the step, and the advantages that training used."""
        return _Steps(self._files.stored_rows(), lambda path: json.loads(gzip.decompress(path.read_bytes())))


def load_run(folder: str | os.PathLike[str]) -> Run:
    """A run directory, to look at what the run has stored.

    Args:
        folder: a directory that `train` or `marl-verl train` made, e.g. "runs/inventory-1".

    Raises:
        MarlError: it is no run directory (the nearest one is offered).
    """
    from marl_verl.config.stored import check_run

    check_run(Path(folder), "config.yaml")
    return Run(folder)


class _Steps(Mapping[int, T]):
    """Step -> what its file holds, ascending; a file is read when its step is asked for."""

    def __init__(self, files: Mapping[int, Path], read: Callable[[Path], T]) -> None:
        self._files, self._read = files, read

    def __getitem__(self, step: int) -> T:
        return self._read(self._files[step])

    def __iter__(self) -> Iterator[int]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def __repr__(self) -> str:
        return f"<steps {list(self._files)}>"


def _episodes(path: Path) -> list[Episode]:
    source = f"'{path}'"
    file = EpisodeFile.parse(unpacked(path.read_bytes(), source), source)
    return [file.episode(name) for name in file.episodes]
