"""Run the real stack, or one process, in a test: train a recipe with the command line.

Starting Ray and vLLM takes about a minute: share one run among the tests that inspect it (a fixture with
scope="module").
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT
from typing import Any

from marl_verl import Run

__all__ = ["Finished", "command", "resume", "train"]

LIMIT = 900.0  # seconds of a run


@dataclass(frozen=True)
class Finished:
    """A finished run of `marl-verl train`."""

    folder: Path  # the run directory
    code: int  # exit code
    output: str  # printed, with the end of the log if the run failed
    left: list[str] = field(default_factory=list)  # outside the run directory, if a test has searched for it

    def lines(self, needed: str) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl with the metric `needed`. AssertionError if no line has it."""
        lines = [line for line in Run(self.folder).metrics if needed in line]
        assert lines, f"no line of {self.folder / 'metrics.jsonl'} has the metric '{needed}'"
        return lines


def train(recipe: Path, folder: Path, *overrides: str, variables: Mapping[str, str] | None = None) -> Finished:
    """Run `marl-verl train RECIPE overrides...` with its run directory at `folder`, on Ray and vLLM unless an override
    sets `marl.run.backend`; with environment `variables` besides those of the test. TimeoutExpired after `LIMIT`."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    place = (f"marl.run.dir={folder.parent}", f"marl.run.name={folder.name}")
    return _run(("train", str(recipe), "marl.run.backend=verl", *overrides, *place), folder, variables)


def resume(folder: Path, *overrides: str, variables: Mapping[str, str] | None = None) -> Finished:
    return _run(("train", "--resume", str(folder), *overrides), folder, variables)


def command(*arguments: str, variables: Mapping[str, str] | None = None) -> str:
    """The output of `marl-verl arguments...`. AssertionError if it fails or prints to standard error."""
    done = _marl_verl(arguments, variables, stderr=PIPE)
    if done.returncode or done.stderr:
        message = f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
        raise AssertionError(f"marl-verl {' '.join(arguments)}: {message}")
    return done.stdout


def _run(arguments: tuple[str, ...], folder: Path, variables: Mapping[str, str] | None) -> Finished:
    done = _marl_verl(arguments, variables, stderr=STDOUT, cwd=folder.parent)
    log = folder / "train.log"
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-40:]) if done.returncode and log.is_file() else ""
    return Finished(folder, done.returncode, f"{done.stdout}\n{tail}")


def _marl_verl(
    arguments: tuple[str, ...], variables: Mapping[str, str] | None, stderr: int, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    words, env = [sys.executable, "-m", "marl_verl.cli.main", *arguments], {**os.environ, **(variables or {})}
    return subprocess.run(words, cwd=cwd, env=env, stdin=DEVNULL, stdout=PIPE, stderr=stderr, text=True, timeout=LIMIT)
