"""Read what a run has stored: `Run` and its files."""

import json
import os
from collections import UserDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_verl.errors import missing, user_error
from marl_verl.extensions import required
from marl_verl.files import read_bytes, read_json
from marl_verl.run.checkpoint.folders import complete, step_of
from marl_verl.run.run_dir import PLACES, RunDir, unpacked

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from marl_verl.episode import Episode


class Run(os.PathLike[str]):
    """A run directory. Files are read on access, so a run that is still training shows its latest state.

    A `Run` can be used as a path, e.g. `evaluate(run)`, `train(resume=run)`, `Path(run)`; `folder` is its path.
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
        """metrics.jsonl: a record per training step and validation, with its `step`; see docs/algorithms.md."""
        return self._files.read_metrics()

    @property
    def summary(self) -> dict[str, Any] | None:
        """summary.json, e.g. `summary["success_after"]`; None until training has finished."""
        path = self.folder / "summary.json"
        return read_json(path) if path.is_file() else None

    @property
    def config(self) -> "DictConfig":
        """config.yaml: every option of the run, resolved, e.g. `config.marl.run.seed`."""
        from marl_verl.config.stored import check_run, read_config

        check_run(self.folder, "config.yaml")
        return read_config(self.folder / "config.yaml")

    @property
    def checkpoints(self) -> dict[int, Path]:
        """Step -> folder, of every complete checkpoint, ascending."""
        return {step_of(path): path for path in complete(self._files.folder / "checkpoints")}

    @property
    def episodes(self) -> Mapping[int, "list[Episode]"]:
        """Step -> the training episodes of the step that are stored (`marl.run.keep_journals`), read on access."""
        return _Steps(self._files.stored("journals"), _episodes)

    @property
    def validations(self) -> Mapping[int, "list[Episode]"]:
        """Step -> sample episodes of the validation (`marl.rollout.keep_episodes`), read on access."""
        return _Steps(self._files.stored("episodes"), _episodes)

    @property
    def rows(self) -> Mapping[int, dict[str, Any]]:
        """Step -> the document that `explain` takes: the rows of the step, and the advantages that training used."""
        return _Steps(self._files.stored("rows"), read_rows)


def load_run(folder: str | os.PathLike[str]) -> Run:
    """Open a run directory to read what the run has stored.

    Args:
        folder: a directory created by `train` or `marl-verl train`, e.g. "runs/inventory-1".

    Raises:
        MarlError: the folder is not a run directory (with the nearest one).
    """
    from marl_verl.config.stored import check_run

    check_run(Path(folder), "config.yaml")
    return Run(folder)


class _Steps(UserDict[int, Any]):
    """Step -> content of its file, ascending; files are read on access."""

    def __init__(self, files: Mapping[int, Path], read: Callable[[Path], Any]) -> None:
        super().__init__(files)
        self._read = read

    def __getitem__(self, step: int) -> Any:
        return self._read(self.data[step])


def read_file(path: Path) -> bytes:
    """The content of a file, decompressed. MarlError if it cannot be read."""
    if not path.exists():
        raise missing("file", path, path.parent.glob("*"))
    with user_error(f"'{path}' cannot be read", OSError):
        return unpacked(read_bytes(path, follow=run_of(path) is None), f"'{path}'")


def read_rows(path: Path) -> Any:
    """The document with the rows of a step."""
    with user_error(f"'{path}' is not JSON", ValueError, RecursionError):
        return json.loads(read_file(path))


def _episodes(path: Path) -> "list[Episode]":
    read = required("api", "read_episodes", "stored episodes", "inspect")
    return list(read(path).episodes.values())


def run_of(source: Path) -> Path | None:
    """The run directory that a path is or that contains a stored file; None for another file."""
    if source.is_dir():
        return source
    return source.parent.parent if source.parent.name in (*PLACES, "evaluations") else None
