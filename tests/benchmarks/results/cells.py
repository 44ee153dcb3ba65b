"""Cells: a run of one arm with one seed, trained by its command and stored as a line of docs/results/CLAIM.json."""

import json
import math
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from marl_verl_report import arms
from marl_verl_report.arms import curve

from marl_verl.run.reading import Run, load_run
from marl_verl.run.run_dir import STARTS
from marl_verl.version import __version__
from tests.benchmarks.results.claim import Arm, Claim
from tests.benchmarks.results.measures import SAMPLED, SUCCESS

ROOT = Path(__file__).resolve().parents[3]
STORED = ROOT / "docs" / "results"
ON_VERL = "verl"  # folder of the cells that claims of the local backend have on verl's
RUNS = Path("runs", "results")
MEASURED = ("marl_verl", "plugins", "recipes")  # the commit of a cell is the last one that changed these
SUMMARY, DIGITS = "cell.json", 5
INTERVALS = 20  # of a stored curve, at most

Cell = dict[str, Any]


def stored(claim: Claim, folder: Path = STORED) -> list[Cell]:
    """The cells of a claim, sorted by arm and seed."""
    path = folder / f"{claim.name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []


def store(claim: Claim, cell: Cell, folder: Path = STORED) -> None:
    """Write a cell in place of one of the same arm and seed. The file has one line per cell."""
    key = (cell["arm"], cell["seed"])
    others = [other for other in stored(claim, folder) if (other["arm"], other["seed"]) != key]
    order = [arm.name for arm in claim.arms]
    cells = sorted([*others, cell], key=lambda cell: (order.index(cell["arm"]), cell["seed"]))
    folder.mkdir(parents=True, exist_ok=True)
    writing = folder / f".{claim.name}.json"
    writing.write_text("[\n" + ",\n".join(map(json.dumps, cells)) + "\n]\n", encoding="utf-8")
    writing.replace(folder / f"{claim.name}.json")


def missing(claim: Claim, arms: Iterable[Arm], seeds: Iterable[int], folder: Path = STORED) -> list[tuple[Arm, int]]:
    """The cells of arms without a stored line: all arms of two seeds before the next two. The second arm finds the
    tiny models of the first one in the cache, which would be made twice if both ran at the same time."""
    have = {(cell["arm"], cell["seed"]) for cell in stored(claim, folder)}
    cells = [(arm, seed) for arm in arms for seed in seeds if (arm.name, seed) not in have]
    return sorted(cells, key=lambda cell: cell[1] // 2)


def borrow(claim: Claim, claims: Iterable[Claim], folder: Path = STORED) -> None:
    """Store the cells that other claims have trained with the same command, if they have all measures."""
    others = {shlex.join(cell["command"]): cell for other in claims for cell in stored(other, folder)}
    for arm, seed in missing(claim, claim.arms, range(claim.most), folder):
        cell = others.get(shlex.join(claim.command(arm, seed)))
        keys = [measure.key for measure in claim.measures]
        if cell and cell.get("backend") == claim.backend and cell["metrics"].keys() >= set(keys):
            store(claim, {**cell, "arm": arm.name, "metrics": {key: cell["metrics"][key] for key in keys}}, folder)


def train_on_verl(claim: Claim) -> Iterator[Cell]:
    """Train and store seed 0 of the first arm of a claim of the local backend on verl's, unless it is stored."""
    if claim.backend == "local":
        there = replace(claim, backend="verl")
        for cell in train(there, missing(there, there.arms[:1], [0], STORED / ON_VERL), jobs=1):
            store(there, cell, STORED / ON_VERL)
            yield cell


def train(claim: Claim, wanted: Iterable[tuple[Arm, int]], jobs: int) -> Iterator[Cell]:
    """Train cells of a claim in the current directory, at most `jobs` at a time, and return their summaries."""
    backend = f"marl.run.backend={claim.backend}"
    of_folder = {}
    for arm, seed in wanted:
        name = "-".join([claim.name, claim.backend, *re.findall("[A-Za-z0-9]+", arm.name), str(seed)])
        parsed = arms.Arm.parse([*arm.words, *claim.settings, backend])
        of_folder[RUNS / name] = arms.Cell(parsed, seed, RUNS / name), arm
        if not (RUNS / name / SUMMARY).is_file():
            shutil.rmtree(RUNS / name, ignore_errors=True)

    def summarise(cell: arms.Cell) -> None:  # in the run's process: a fork after a backward pass cannot train
        content = summary(claim, of_folder[cell.folder][1], cell.seed, load_run(cell.folder))
        (cell.folder / SUMMARY).write_text(json.dumps(content))

    for cell in arms.trained([cell for cell, _ in of_folder.values()], jobs, then=summarise):
        yield json.loads((cell.folder / SUMMARY).read_text())
        shutil.rmtree(cell.folder)


def summary(claim: Claim, arm: Arm, seed: int, run: Run) -> Cell:
    """What is stored of a run."""
    start = json.loads((run.folder / STARTS).read_text(encoding="utf-8"))[-1]
    greedy, sampled = curve(run, SUCCESS), curve(run, SAMPLED)
    every = max(1, math.ceil((len(greedy) - 1) / INTERVALS))
    assert run.summary is not None
    return {
        **{"arm": arm.name, "seed": seed, "command": claim.command(arm, seed), "backend": claim.backend},
        **{"version": __version__, "commit": commit()},
        "machine": {name: start["machine"][name] for name in ("cpus", "memory_gib", "gpus", "python")},
        **{"packages": start["packages"], "seconds": round(run.summary["seconds_total"])},
        "metrics": {measure.key: round(measure.of_run(run), DIGITS) for measure in claim.measures},
        "curve": {
            "step": [int(step) for step in greedy][::every],
            "greedy": [round(value, DIGITS) for value in greedy.values()][::every],
            "sampled": [round(value, DIGITS) for value in sampled.values()][::every],
        },
    }


def commit() -> str:
    """The commit that changed the measured code last, with a + if files differ from it."""
    git = ["git", "-C", str(ROOT)]
    last = subprocess.check_output([*git, "log", "-1", "--format=%h", "--", *MEASURED], text=True).strip()
    return last + "+" * bool(subprocess.check_output([*git, "status", "--porcelain", "--", *MEASURED], text=True))
