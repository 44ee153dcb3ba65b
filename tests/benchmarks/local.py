"""The two backends side by side: the quick-start demo and two pretrained models, in one process and on Ray and vLLM.

    python -m tests.benchmarks.local        # --rounds for more; --only demo, steps or pretrained

    demo         the whole demo, as `make demo` and `make demo-verl` run it, with the making of its models
    steps        three steps of it, with the models in the cache
    pretrained   three steps of two SmolLM2, converted before

Backends take turns. The seconds of the first step begin at the command.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from marl_verl_tiny.model import ensure_all

from marl_verl.config.policy_models import pretrained_models
from marl_verl.run.prepare import plan_run
from tests.benchmarks.measure import Measured, measure_run

QUICKSTART = Path(__file__).resolve().parents[2] / "recipes" / "quickstart"
RECIPES = {"demo": "split_plan_path.yaml", "steps": "split_plan_path.yaml", "pretrained": "pretrained.yaml"}
SHORT = (
    *("trainer.total_training_steps=3", "trainer.val_before_train=false", "trainer.test_freq=1000"),
    *("trainer.save_freq=-1", "marl.task.test_size=4"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=RECIPES, default=[*RECIPES])
    options = parser.parse_args()
    print("| run | backend | s to the end of step 1 | s a step | total s | peak memory, GiB | processes |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for name in options.only:
            compare(name, QUICKSTART / RECIPES[name], options.rounds, Path(folder))


def compare(name: str, recipe: Path, rounds: int, folder: Path) -> None:
    """Print the medians of both backends."""
    if name != "demo":
        plan = plan_run(recipe, [])
        ensure_all(list(plan.made.values()))
        for model in pretrained_models(plan.config, plan.team).values():
            model.fetch()
    seen: dict[str, list[Measured]] = {"local": [], "verl": []}
    for number in range(rounds):
        for backend, runs in seen.items():
            runs.append(train(name, recipe, backend, folder, f"{name}-{backend}-{number}"))
    for backend, runs in seen.items():
        first, total = (
            statistics.median(values) for values in zip(*((r.first_step, r.seconds) for r in runs), strict=True)
        )
        step = statistics.median(seconds for run in runs for seconds in run.step_seconds[1:])
        memory = max(run.peak_bytes for run in runs) / 2**30
        cells = (name, backend, f"{first:.0f}", f"{step:.2f}", f"{total:.0f}", f"{memory:.2f}")
        print(f"| {' | '.join(cells)} | {max(run.processes for run in runs)} |", flush=True)


def train(name: str, recipe: Path, backend: str, folder: Path, run: str) -> Measured:
    """One run."""
    settings = (f"marl.run.backend={backend}", f"marl.run.dir={folder}", f"marl.run.name={run}")
    command = [sys.executable, "-m", "marl_verl.cli.main", "train", str(recipe), *settings]
    whole = name == "demo"
    variables = {"MARL_VERL_CACHE": str(folder / f"cache-{run}")} if whole else {}
    return measure_run([*command, *(() if whole else SHORT)], folder / run, variables)


if __name__ == "__main__":
    main()
