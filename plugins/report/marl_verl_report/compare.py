"""`marl-verl compare A.yaml B.yaml`: train two recipes with the same seeds, and say which is better, and how surely."""

import argparse
import shlex
import time
from itertools import pairwise
from pathlib import Path

from marl_verl.cli.arguments import add_backend_argument, add_plugin_argument
from marl_verl.config.compose import compose
from marl_verl.errors import MarlError
from marl_verl.files import write_json
from marl_verl.run.reading import Run
from marl_verl.run.run_dir import locked
from marl_verl.run.terminal import show
from marl_verl_report import decide, draw
from marl_verl_report.arms import Arm, Cell, curve, measured, parsed_measure, trained
from marl_verl_report.decide import Estimate, estimate

EXAMPLES = """
Runs with the same seed are paired: they have the same tasks and order of data, and models that are made on the spot
begin with the same weights. After 10, 20, 40, ... seeds the interval of the mean difference is looked at, and the
comparison ends as soon as it decides. All looks together are wrong in at most 5 % of comparisons, if --seeds stays what
it was at the first look. The same command continues an interrupted comparison. DIR/compare.svg shows the learning
curves and the differences, DIR/compare.json the numbers.

  marl-verl compare a.yaml b.yaml --seeds 20 --local
  marl-verl compare recipes/at_grpo/cpu.yaml "--variant grpo" trainer.total_training_steps=20 --local --margin 0.05
  marl-verl compare a.yaml "actor_rollout_ref.actor.optim.lr=1e-4" --measure mean:policy/solver/grad_norm

A measure is a metric of metrics.jsonl, of which the last value counts, or FORM:METRIC with the form last, mean, max,
gain (last - first) or area (mean of all but the first).
"""

SMALL = ("trainer.save_freq=-1", "marl.run.keep_journals=0", "marl.run.keep_rows=0")
"""First overrides of both arms: a run keeps its metrics only."""

Values = tuple[dict[int, float], dict[int, float]]  # of each arm: seed -> the measured value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("first", metavar="A", help='a recipe, or in quotes words of `train`: "a.yaml --variant x lr=1"')
    parser.add_argument("second", metavar="B", help="the same; without a recipe, that of A")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="of both")
    parser.add_argument("--seeds", type=int, default=20, metavar="N", help="at most (default: %(default)s)")
    measure = "what is compared (default: %(default)s)"
    parser.add_argument("--measure", default="validation/success", metavar="METRIC", help=measure)
    margin = "a difference that does not matter: also end when the interval lies within -D and D"
    parser.add_argument("--margin", type=float, metavar="D", help=margin)
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="runs at a time (default: %(default)s)")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="of the runs (default: runs/compare-A-B)")
    add_backend_argument(parser)
    add_plugin_argument(parser)


def run(options: argparse.Namespace) -> int:
    metric = parsed_measure(options.measure)[1]
    if options.seeds < 2 or options.jobs < 1 or (options.margin is not None and not options.margin > 0):
        raise MarlError("--seeds must be at least 2, --jobs at least 1, and --margin above 0")
    arms = parsed(options)
    for arm in arms if metric.startswith("validation/") else ():
        if compose(arm.recipe, arm.overrides).trainer.test_freq < 0:
            raise MarlError(f"trainer.test_freq is -1 in {arm.recipe}: set it, or --measure, for runs with {metric}")
    folder = options.dir or Path("runs", "-".join(["compare", *(arm.recipe.stem for arm in arms)]))
    values: Values = ({}, {})
    looks = decide.looks(options.seeds)
    level = decide.level(len(looks))
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):  # a run without a summary is removed, and trained again
        for start, end in pairwise([0, *looks]):
            train(arms, range(start, end), folder, values, options)
            difference = decide.difference(*values, level)
            if verdict := decide.decided(difference, options.margin):
                break
    write(folder / "compare.svg", values, difference, metric, options)
    numbers = {
        **{"A": options.first, "B": options.second, "overrides": options.overrides, "measure": options.measure},
        **{"values": values, "difference": vars(difference), "level": level},
        **{"margin": options.margin, "verdict": verdict},
    }
    write_json(folder / "compare.json", numbers)
    show(f"\n{options.measure}, mean over {difference.n} seeds and its 95 % interval")
    for name, column, words in zip("AB", values, (options.first, options.second), strict=True):
        show(f"  {name}      {shown(estimate(list(column.values())))}   {words}")
    show(f"  A - B  {shown(difference)}   paired; the interval has a level of {100 * level:.4g} %")
    more = decide.needed(difference, None, options.margin)
    number = f"--seeds {more} would decide" if more else f"{decide.MOST} seeds would not decide"
    undecided = f"Undecided: if mean and deviation stayed as they are, {number}."
    verdicts = {"higher": "A is higher.", "lower": "B is higher.", "within": f"No difference above {options.margin}."}
    show(verdicts.get(verdict or "", undecided))
    show(f"{folder / 'compare.svg'}, compare.json")
    return 0


def parsed(options: argparse.Namespace) -> list[Arm]:
    first, second = shlex.split(options.first), shlex.split(options.second)
    if not first or not first[0].endswith((".yaml", ".yml")):
        raise MarlError(f"arm '{options.first}' has no recipe: begin with a YAML file")
    if not second or not second[0].endswith((".yaml", ".yml")):
        second.insert(0, first[0])
    shared = [*options.overrides, *([f"marl.run.backend={options.backend}"] if options.backend else [])]
    return [Arm.parse([recipe, *SMALL, *own, *shared]) for recipe, *own in (first, second)]


def train(arms: list[Arm], seeds: range, folder: Path, values: Values, options: argparse.Namespace) -> None:
    cells = [
        Cell(arm, seed, folder / f"{name}-{seed}", tuple(options.plugin))
        for seed in seeds
        for name, arm in zip("AB", arms, strict=True)
    ]
    begun = time.monotonic()
    for cell in trained(cells, options.jobs):
        value = measured(Run(cell.folder), options.measure)
        values["AB".index(cell.folder.name[0])][cell.seed] = value
        count = f"{len(values[0]) + len(values[1])} of at most {2 * options.seeds} runs"
        show(f"{cell.folder.name}: {options.measure} {value:.4g} ({count}, {(time.monotonic() - begun) / 60:.1f} min)")


def shown(value: Estimate) -> str:
    return f"{value.mean:.4g} ({value.low:.4g} to {value.high:.4g})"


def write(path: Path, values: Values, difference: Estimate, metric: str, options: argparse.Namespace) -> None:
    """Draw the learning curves of both arms, and the differences."""
    runs = {
        f"{name}: {words}": [curve(Run(path.with_name(f"{name}-{seed}")), metric) for seed in column]
        for name, column, words in zip("AB", values, (options.first, options.second), strict=True)
    }
    figure, (left, right) = draw.figure(9, 3.5, 2)
    draw.curves(left, runs, metric)
    pairs = [values[0][seed] - values[1][seed] for seed in values[0]]
    draw.differences(right, pairs, difference, f"A - B: {options.measure}", options.margin)
    draw.save(figure, path)
