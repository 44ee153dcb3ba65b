"""Read the files of a run directory."""

import json
import os
import re
from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_verl import plugins
from marl_verl.episode import Episode
from marl_verl.errors import MarlError, missing, user_error
from marl_verl.files import read_bytes, read_json
from marl_verl.plugins import one_file
from marl_verl.run.checkpoint.folders import complete, step_of
from marl_verl.run.run_dir import PLACES, RunDir, unpacked

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from marl_verl.inspect.episodes import EpisodeFile

KEEP = {
    "journals": "marl.run.keep_journals=1",
    "episodes": "marl.rollout.keep_episodes=4",
    "rows": "marl.run.keep_rows=1",
}
"""Folder of a run -> the option with which a run stores it."""


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
    def episodes(self) -> Mapping[int, list[Episode]]:
        """Step -> the training episodes of the step that are stored (`marl.run.keep_journals`), read on access."""
        return _Steps(self._files.stored("journals"), _episodes)

    @property
    def validations(self) -> Mapping[int, list[Episode]]:
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


def stored_file(source: Path, place: str, step: int | None = None) -> Path:
    """A file as it is; of a run that of a step (default: the latest) in one of `PLACES`. MarlError: it has none."""
    if not source.is_dir():
        return source
    files = RunDir(source).stored(place)
    if not files:
        raise MarlError(f"run '{source}' has no stored {place}: train it with {KEEP[place]}")
    step = max(files) if step is None else step
    if step not in files:
        near = sorted(sorted(files, key=lambda stored: abs(stored - step))[:3])
        raise MarlError(f"run '{source}' has no {place} of step {step}: the nearest are {', '.join(map(str, near))}")
    return files[step]


def file_of_episode(source: Path, name: str | None, step: int | None = None) -> Path:
    """`stored_file` of `step`, else of that in an episode's id (`s12t00000_0`: training step 12, `g20t00000_0`: the
    validation at step 20), else of the latest."""
    place = re.match(r"([a-z])(\d+)t\d", name or "")
    if step is None and place:
        step = int(place[2])
    return stored_file(source, "episodes" if place and place[1] != "s" else "journals", step)


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


def read_episodes(path: Path) -> "EpisodeFile":
    """A file of stored episodes."""
    from marl_verl.inspect.episodes import EpisodeFile  # here: `explain` does not need it and must start fast

    return EpisodeFile.parse(read_file(path), f"'{path}'")


def _episodes(path: Path) -> list[Episode]:
    return list(read_episodes(path).episodes.values())


def use_plugin_files(run: Path | None, files: Sequence[Path]) -> None:
    """Load the plugin files that a run has copied, and `files`."""
    plugins.use_files(one_file.read_files(files) if run is None else one_file.files_of_run(run, files))


def run_of(source: Path) -> Path | None:
    """The run directory that a path is or that contains a stored file; None for another file."""
    if source.is_dir():
        return source
    return source.parent.parent if source.parent.name in (*PLACES, "evaluations") else None
