"""The two backends side by side: the quick-start demo and two pretrained models, in one process and on Ray and vLLM.

    python -m tests.benchmarks.local        # --rounds for more; --only demo or pretrained

Backends take turns. Models are made before the clock starts. A run trains a few steps and validates 4 tasks at
the end; the seconds of its first step begin at the command.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from marl_verl_tiny.model import ensure_all

from marl_verl.config.policy_models import pretrained_models
from marl_verl.run.prepare import plan_run
from tests.benchmarks.measure import Measured, measure

QUICKSTART = Path(__file__).resolve().parents[2] / "recipes" / "quickstart"
RECIPES = {"demo": ("split_plan_path.yaml", 10), "pretrained": ("pretrained.yaml", 2)}
"""Name -> recipe and steps."""
ALONE = ("trainer.val_before_train=false", "marl.task.test_size=4", "trainer.test_freq=1000", "trainer.save_freq=-1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", choices=RECIPES)
    options = parser.parse_args()
    print("| recipe | backend | s to the end of step 1 | s a step | total s | peak memory, GiB | processes |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for name, (recipe, steps) in RECIPES.items():
            if options.only in (None, name):
                compare(name, QUICKSTART / recipe, steps, options.rounds, Path(folder))


def compare(name: str, recipe: Path, steps: int, rounds: int, folder: Path) -> None:
    """Print the medians of both backends."""
    plan = plan_run(recipe, [])
    ensure_all(list(plan.made.values()))
    for model in pretrained_models(plan.config, plan.team).values():
        model.fetch()
    seen: dict[str, list[Measured]] = {"local": [], "verl": []}
    for number in range(rounds):
        for backend, runs in seen.items():
            runs.append(train(recipe, steps, backend, folder, f"{name}-{backend}-{number}"))
    for backend, runs in seen.items():
        first, total = (
            statistics.median(values) for values in zip(*((r.first_step, r.seconds) for r in runs), strict=True)
        )
        step = statistics.median(seconds for run in runs for seconds in run.step_seconds[1:])
        memory = max(run.peak_bytes for run in runs) / 2**30
        cells = (name, backend, f"{first:.0f}", f"{step:.2f}", f"{total:.0f}", f"{memory:.1f}")
        print(f"| {' | '.join(cells)} | {max(run.processes for run in runs)} |", flush=True)


def train(recipe: Path, steps: int, backend: str, folder: Path, name: str) -> Measured:
    """One run."""
    settings = (f"marl.run.backend={backend}", f"marl.run.dir={folder}", f"marl.run.name={name}")
    command = [sys.executable, "-m", "marl_verl.cli.main", "train", str(recipe), *settings, *ALONE]
    seen = measure([*command, f"trainer.total_training_steps={steps}"], folder)
    lines = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    seen.step_seconds = [line["seconds/step"] for line in lines if "seconds/step" in line]
    seen.first_step = json.loads((folder / name / "timing.json").read_text())["seconds_to_first_step"]
    return seen


if __name__ == "__main__":
    main()
