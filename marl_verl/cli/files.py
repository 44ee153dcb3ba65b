"""What commands read: a file, or what a run has stored of a step."""

from __future__ import annotations

import argparse
import gzip
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from marl_verl.errors import MarlError, missing
from marl_verl.trainer.run_dir import RunDir

PLACES = ("journals", "episodes", "rows")
"""Folders of a run with a file a step."""

Stored = Callable[[RunDir], Mapping[int, Path]]
"""Step -> its file, ascending."""


def add_file_arguments(parser: argparse.ArgumentParser, file: str) -> None:
    """FILE, or --run DIR with --step N; `file` says what FILE is."""
    parser.add_argument("file", nargs="?", metavar="FILE", help=file)
    parser.add_argument("--run", type=Path, dest="folder", metavar="DIR", help="a run directory, instead of a file")
    parser.add_argument("--step", type=int, metavar="N", help="which step of the run; left out: the newest stored one")


def chosen(
    options: argparse.Namespace, stored: Stored, example: str, remedy: str, what: str = "step", step: int | None = None
) -> tuple[str, bytes]:
    """What the user named: how an error names it, and its bytes.

    Args:
        stored: the steps of a run.
        example: a file's name, to show what is missing.
        remedy: what to do where a run has no steps.
        what: what a file of the run is of: "step" or "validation".
        step: which one where the user names none; None for the newest.

    Raises:
        MarlError: nothing named, or both, or it is not there (nearest offered), or cannot be read.
    """
    command = options.command
    if options.folder is None:
        if options.step is not None:
            raise MarlError("--step is a step of a run: give --run DIR with it")
        if options.file is None:
            said = f"marl-verl {command} {example}, or marl-verl {command} --run runs/NAME"
            raise MarlError(f"which file? e.g. {said}")
        if options.file == "-":
            return "standard input", sys.stdin.buffer.read()
        return f"'{options.file}'", _read(Path(options.file), "file", command)
    folder: Path = options.folder
    if options.file is not None:
        raise MarlError(f"'{options.file}' or --run '{folder}': {command} one of them")
    if not folder.is_dir():
        raise missing("run in", folder, folder.parent.glob("*/"))
    steps = stored(RunDir(folder))
    if not steps and folder.name in PLACES:
        raise MarlError(f"'{folder}' is a folder of a run, which is {_past(command)} with --run '{_run_of(folder)}'")
    if not steps:
        raise MarlError(f"run '{folder}' has no stored {what}s: {remedy}")
    if options.step is not None:
        step = options.step
    elif step is None:
        step = max(steps)
    if step not in steps:
        raise MarlError(f"run '{folder}' has not stored {what} {step}: it has {_listed(list(steps))}")
    return f"run '{folder}', {what} {step}", _read(steps[step], "step file", command)


def _run_of(folder: Path) -> Path:
    """The run that a folder is, or is a part of."""
    return folder.parent if folder.name in PLACES else folder


def _past(command: str) -> str:
    return f"{command}ed"


def _read(path: Path, what: str, command: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise missing(what, path, path.parent.glob("*")) from error
    except IsADirectoryError as error:
        raise MarlError(f"'{path}' is a folder: a run is {_past(command)} with --run '{_run_of(path)}'") from error
    except OSError as error:
        raise MarlError(f"'{path}' cannot be read: {error.strerror}") from error


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
    return ", ".join(_run_of_steps(run) for run in runs)


def _run_of_steps(run: Sequence[int]) -> str:
    if len(run) < 4:
        return ", ".join(map(str, run))
    every = run[1] - run[0]
    return f"{run[0]} to {run[-1]}" + (f" (every {every})" if every > 1 else "")
