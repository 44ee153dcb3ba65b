"""Which of a run's stored files a command reads, with the plugin files of the run."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from marl_verl import plugins
from marl_verl.errors import MarlError
from marl_verl.plugins import one_file
from marl_verl.run.reading import read_file
from marl_verl.run.run_dir import PLACES, RunDir

NEAR = 9  # stored steps in which a row or an episode is looked for


def add_file_arguments(parser: argparse.ArgumentParser, file: str) -> None:
    """Add RUN with --step N, or FILE; `file` is the help text of FILE."""
    parser.add_argument("source", type=Path, metavar="RUN|FILE", help=f"a run directory, or {file}")
    parser.add_argument("--step", type=int, metavar="N", help="step of the run (default: the latest stored)")


def stored_file(source: Path, place: str, step: int | None = None) -> Path:
    """A file as it is; of a run that of a step (default: the latest) in one of `PLACES`. MarlError: it has none."""
    if not source.is_dir():
        if step is not None and source.exists():
            raise MarlError(f"--step chooses a file of a run, and '{source}' is a file: leave it out")
        return source
    files = RunDir(source).stored(place)
    if not files:
        section = "rollout" if place == "episodes" else "run"
        raise MarlError(f"run '{source}' has no stored {place}: train it with marl.{section}.keep_{place}=1")
    step = max(files) if step is None else step
    if step not in files:
        near = sorted(sorted(files, key=lambda stored: abs(stored - step))[:3])
        raise MarlError(f"run '{source}' has no {place} of step {step}: the nearest are {', '.join(map(str, near))}")
    return files[step]


def read_stored(source: Path, place: str, key: str | None, step: int | None) -> tuple[Path, bytes]:
    """A `stored_file` and its content: that of `step`, else of the step in the key of a row or an episode
    (`s12t00000_0`), else of the latest. Asynchronous training finishes a task of step 12 also in others."""
    named = re.match(r"([a-z](\d+)t\d+)_", key or "")
    if step is None and named and source.is_dir():
        step, files = int(named[2]), RunDir(source).stored(place)
        for at in sorted(files, key=lambda at: abs(at - int(named[2])))[:NEAR]:
            if f'"{named[1]}"'.encode() in (content := read_file(files[at])):
                return files[at], content
    file = stored_file(source, place, step)
    return file, read_file(file)


def use_plugin_files(run: Path | None, files: Sequence[Path]) -> None:
    """Load the plugin files that a run has copied, and `files`. MarlError for a folder that is no run."""
    if run is not None and not any((run / place).is_dir() for place in PLACES):
        from marl_verl.config.stored import check_run  # here: it takes time

        check_run(run, "config.yaml")
    plugins.use_files(one_file.read_files(files) if run is None else one_file.files_of_run(run, files))
