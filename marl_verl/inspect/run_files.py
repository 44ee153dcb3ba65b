"""Read the files of a run directory: as Python values for scripts, as bytes for commands."""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from marl_verl import plugins
from marl_verl.episode import Episode
from marl_verl.errors import MarlError, missing
from marl_verl.files import read_bytes, read_json, read_text
from marl_verl.plugins import one_file
from marl_verl.run.checkpoint.folders import complete, step_of
from marl_verl.run.run_dir import PLACES, RunDir, unpacked

if TYPE_CHECKING:
    from omegaconf import DictConfig

T = TypeVar("T")


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
        path = self.folder / "metrics.jsonl"
        lines = read_text(path).splitlines(keepends=True) if path.is_file() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]  # the last one may be half written

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
        return _Steps(self._files.stored("journals"), episodes_of)

    @property
    def validations(self) -> Mapping[int, list[Episode]]:
        """Step -> sample episodes of the validation (`marl.rollout.keep_episodes`), read on access."""
        return _Steps(self._files.stored("episodes"), episodes_of)

    @property
    def rows(self) -> Mapping[int, dict[str, Any]]:
        """Step -> the document that `explain` takes: the rows of the step, and the advantages that training used."""
        return _Steps(self._files.stored("rows"), lambda path: json.loads(_content(path)[0]))


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


class _Steps(Mapping[int, T]):
    """Step -> content of its file, ascending; files are read on access."""

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


def episodes_of(path: Path) -> list[Episode]:
    """The episodes of a file."""
    from marl_verl.inspect.episodes import EpisodeFile  # here: `explain` does not need it and must start fast

    file = EpisodeFile.parse(*_content(path))
    return [file.episode(name) for name in file.episodes]


def _content(path: Path) -> tuple[bytes, str]:
    source = f"'{path}'"
    return unpacked(read_bytes(path), source), source


def read_step(
    command: str, folder: Path, place: str, remedy: str, kind: str = "step", step: int | None = None
) -> tuple[str, bytes]:
    """(name for errors, bytes) of a run's file of a step (default: the latest). MarlError: the run has no such step
    (`remedy` if the run has none at all), or the file cannot be read."""
    if not folder.is_dir():
        raise missing("run in", folder, folder.parent.glob("*/"))
    steps = RunDir(folder).stored(place)
    if not steps and folder.name in PLACES:
        raise MarlError(f"'{folder}' is a folder of a run. Give the run: marl-verl {command} {folder.parent}")
    if not steps:
        raise MarlError(f"run '{folder}' has no stored {kind}s: {remedy}")
    step = max(steps) if step is None else step
    if step not in steps:
        raise MarlError(f"run '{folder}' has not stored {kind} {step}: {nearest_steps(step, steps)}")
    return f"run '{folder}', {kind} {step}", read_file(command, steps[step], "step file")[1]


def read_episode(folder: Path, name: str | None, step: int | None = None) -> tuple[str, bytes]:
    """`read_step` of `step`, else of that in an episode's id (`s12t00000_0`: training step 12, `g20t00000_0`: the
    validation at step 20), else of the latest."""
    place = re.match(r"([a-z])(\d+)t\d", name or "")
    step = int(place[2]) if step is None and place else step
    if place and place[1] != "s":
        return read_step("replay", folder, "episodes", "validate with marl.rollout.keep_episodes=4", "validation", step)
    return read_step("replay", folder, "journals", "train it with marl.run.keep_journals=1", step=step)


def nearest_steps(step: int, steps: Mapping[int, Path]) -> str:
    """Up to three of a run's steps that are nearest to one that it lacks."""
    near = sorted(sorted(steps, key=lambda stored: abs(stored - step))[:3])
    return f"it has {', '.join(map(str, near))}" + (f", and {len(steps) - 3} others" if len(steps) > 3 else "")


def read_file(command: str, path: Path, kind: str = "file") -> tuple[str, bytes]:
    """(name for errors, bytes) of a file. MarlError if it cannot be read."""
    try:
        return f"'{path}'", read_bytes(path, follow=run_of(path) is None)
    except FileNotFoundError as error:
        raise missing(kind, path, path.parent.glob("*")) from error
    except OSError as error:
        raise MarlError(f"'{path}' cannot be read: {error.strerror}") from error


def use_plugin_files(run: Path | None, files: Sequence[Path]) -> None:
    """Load the plugin files that a run has copied, and `files`."""
    plugins.use_files(one_file.read_files(files) if run is None else one_file.files_of_run(run, files))


def run_of(file: str | Path) -> Path | None:
    """The run directory that contains a file, or None."""
    folder = Path(file).parent
    return folder.parent if folder.name in (*PLACES, "evaluations") else None
