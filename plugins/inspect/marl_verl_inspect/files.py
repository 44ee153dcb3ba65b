"""Which of a run's stored files a command reads, with the plugin files of the run."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from marl_verl import plugins
from marl_verl.errors import MarlError
from marl_verl.plugins import one_file
from marl_verl.run.run_dir import RunDir


def add_file_arguments(parser: argparse.ArgumentParser, file: str) -> None:
    """Add RUN with --step N, or FILE; `file` is the help text of FILE."""
    parser.add_argument("source", type=Path, metavar="RUN|FILE", help=f"a run directory, or {file}")
    parser.add_argument("--step", type=int, metavar="N", help="step of the run (default: the latest stored)")


def stored_file(source: Path, place: str, step: int | None = None) -> Path:
    """A file as it is; of a run that of a step (default: the latest) in one of `PLACES`. MarlError: it has none."""
    if not source.is_dir():
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


def use_plugin_files(run: Path | None, files: Sequence[Path]) -> None:
    """Load the plugin files that a run has copied, and `files`."""
    plugins.use_files(one_file.read_files(files) if run is None else one_file.files_of_run(run, files))
