"""Cells: a run of one arm with one seed, trained by its command and stored as a line of docs/results/CLAIM.json."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from marl_verl.inspect.run_files import Run, load_run
from marl_verl.run.run_dir import STARTS
from marl_verl.version import __version__
from tests.benchmarks.results.claim import Arm, Claim
from tests.benchmarks.results.measures import SAMPLED, SUCCESS

ROOT = Path(__file__).resolve().parents[3]
STORED = ROOT / "docs" / "results"
RUNS = ROOT / "runs" / "results"
MEASURED = ("marl_verl", "plugins", "recipes")  # the commit of a cell is the last one that changed these
DIGITS = 5

Cell = dict[str, Any]


def stored(claim: Claim, folder: Path = STORED) -> list[Cell]:
    """The cells of a claim, sorted by arm and seed."""
    path = folder / f"{claim.name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []


def store(claim: Claim, cell: Cell, folder: Path = STORED) -> None:
    """Write a cell in place of one of the same arm and seed. The file has one line per cell."""
    key = (cell["arm"], cell["seed"])
    others = [each for each in stored(claim, folder) if (each["arm"], each["seed"]) != key]
    order = [arm.name for arm in claim.arms]
    cells = sorted([*others, cell], key=lambda each: (order.index(each["arm"]), each["seed"]))
    folder.mkdir(parents=True, exist_ok=True)
    writing = folder / f".{claim.name}.json"
    writing.write_text("[\n" + ",\n".join(map(json.dumps, cells)) + "\n]\n", encoding="utf-8")
    writing.replace(folder / f"{claim.name}.json")


def missing(claim: Claim, seeds: Iterable[int], folder: Path = STORED) -> Iterator[tuple[Arm, int]]:
    """The cells of a claim without a stored line: all arms of a seed before the next seed."""
    have = {(cell["arm"], cell["seed"]) for cell in stored(claim, folder)}
    for seed in seeds:
        for arm in claim.arms:
            if (arm.name, seed) not in have:
                yield arm, seed


def folder_of(claim: Claim, arm: Arm, seed: int) -> Path:
    """Where a cell is trained; of the arm's name only letters, digits and hyphens, as in the name of a run."""
    return RUNS / f"{claim.name}-{'-'.join(re.findall('[A-Za-z0-9]+', arm.name))}-{seed}"


def run(claim: Claim, arm: Arm, seed: int) -> Cell:
    """Train a cell, unless its run directory is complete, and return its summary.

    An interruption ends the run, and is raised again when all its processes have ended.
    """
    folder = folder_of(claim, arm, seed)
    if not (folder / "summary.json").is_file():
        shutil.rmtree(folder, ignore_errors=True)
        command = [*claim.command(arm, seed), f"marl.run.dir={folder.parent}", f"marl.run.name={folder.name}"]
        train(command, folder.parent / f"{folder.name}.log")
    return summary(claim, arm, seed, load_run(folder))


def train(command: list[str], log: Path) -> None:
    """Run a command of this installation, in its own session: it gets its signals from here only."""
    log.parent.mkdir(parents=True, exist_ok=True)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = child.wait()
        except BaseException:
            child.terminate()  # as Ctrl-C, which a shell may have made its background jobs ignore
            child.wait()
            raise
    if code:
        raise RuntimeError(f"{' '.join(command)} ended with {code}: see {log}")


def summary(claim: Claim, arm: Arm, seed: int, run: Run) -> Cell:
    """What is stored of a run."""
    start = json.loads((run.folder / STARTS).read_text(encoding="utf-8"))[-1]
    validations = [line for line in run.metrics if SUCCESS in line]
    return {
        "arm": arm.name,
        "seed": seed,
        "command": claim.command(arm, seed),
        "version": __version__,
        "commit": commit(),
        "machine": {name: start["machine"][name] for name in ("cpus", "memory_gib", "gpus", "python")},
        "packages": start["packages"],
        "seconds": round(run.summary["seconds_total"]),
        "metrics": {measure.key: round(measure.of_run(run), DIGITS) for measure in claim.measures},
        "curve": {
            "step": [int(line["step"]) for line in validations],
            "greedy": [round(line[SUCCESS], DIGITS) for line in validations],
            "sampled": [round(line[SAMPLED], DIGITS) for line in validations],
        },
    }


def commit() -> str:
    """The commit that changed the measured code last, with a + if files differ from it."""
    git = ["git", "-C", str(ROOT)]
    last = subprocess.check_output([*git, "log", "-1", "--format=%h", "--", *MEASURED], text=True).strip()
    return last + "+" * bool(subprocess.check_output([*git, "status", "--porcelain", "--", *MEASURED], text=True))
