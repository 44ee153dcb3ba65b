"""What commands read: a file, or what a run has stored of a step."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from marl_verl import plugins
from marl_verl.errors import MarlError, missing
from marl_verl.process.run_dir import RunDir

PLACES = ("journals", "episodes", "rows")
"""Folders of a run with a file a step."""

Stored = Callable[[RunDir], Mapping[int, Path]]
"""Step -> its file, ascending."""


def read_step(
    command: str, folder: Path, stored: Stored, remedy: str, what: str = "step", step: int | None = None
) -> tuple[str, bytes]:
    """What a run has stored of a step (default: the newest): how an error names it, and its bytes.

    MarlError: it is not there (nearest offered; `remedy` where a run has none), or cannot be read.
    """
    if not folder.is_dir():
        raise missing("run in", folder, folder.parent.glob("*/"))
    steps = stored(RunDir(folder))
    if not steps and folder.name in PLACES:
        raise MarlError(f"'{folder}' is a folder of a run, which is {command}ed with --run '{folder.parent}'")
    if not steps:
        raise MarlError(f"run '{folder}' has no stored {what}s: {remedy}")
    step = max(steps) if step is None else step
    if step not in steps:
        raise MarlError(f"run '{folder}' has not stored {what} {step}: it has {_listed(list(steps))}")
    return f"run '{folder}', {what} {step}", read_file(command, steps[step], "step file")[1]


def read_file(command: str, path: Path, what: str = "file") -> tuple[str, bytes]:
    """A file: how an error names it, and its bytes. MarlError if it cannot be read."""
    try:
        return f"'{path}'", path.read_bytes()
    except FileNotFoundError as error:
        raise missing(what, path, path.parent.glob("*")) from error
    except IsADirectoryError as error:
        run = path.parent if path.name in PLACES else path
        raise MarlError(f"'{path}' is a folder: a run is {command}ed with --run '{run}'") from error
    except OSError as error:
        raise MarlError(f"'{path}' cannot be read: {error.strerror}") from error


def use_plugin_files(run: Path | None, given: Sequence[Path]) -> None:
    """Use the plugin files that a run has copied, and those given."""
    plugins.use_files(plugins.read_files(given) if run is None else plugins.files_of_run(run, given))


def run_of(file: str | Path) -> Path | None:
    """The run directory that a file is stored in, None for any other file."""
    folder = Path(file).parent
    return folder.parent if folder.name in (*PLACES, "evaluations") else None


@contextmanager
def about(source: str) -> Iterator[None]:
    """Name the source at the beginning of an error message."""
    try:
        yield
    except MarlError as error:
        raise MarlError(f"{source}: {error}" if source else str(error)) from error


def unpacked(content: bytes, source: str) -> bytes:
    """The content of a file that may be packed with gzip. MarlError if it is and cannot be unpacked."""
    if not content.startswith(b"\x1f\x8b"):
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, OSError, zlib.error) as error:
        raise MarlError(f"{source} is damaged: it cannot be unpacked ({error})") from error


def _listed(steps: Sequence[int]) -> str:
    """Steps in words, e.g. "1 to 40" or "10 to 200 (every 10), 203"."""
    runs: list[list[int]] = []  # each with one distance between neighbours
    for step in steps:
        if runs and (len(runs[-1]) < 2 or step - runs[-1][-1] == runs[-1][1] - runs[-1][0]):
            runs[-1].append(step)
        else:
            runs.append([step])
    words: list[str] = []
    for run in runs:
        every = f" (every {run[1] - run[0]})" if len(run) > 1 and run[1] - run[0] > 1 else ""
        words += map(str, run) if len(run) < 4 else [f"{run[0]} to {run[-1]}{every}"]
    return ", ".join(words)
