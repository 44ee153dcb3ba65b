"""`marl-verl eval RUN`: evaluate a team on held-out tasks, optionally with swapped or untrained policies."""

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from marl_verl.cli.arguments import add_backend_argument, add_plugin_argument, add_variant_arguments, show_variants
from marl_verl.config.variants import variant_overrides

EXAMPLES = """
  marl-verl eval runs/inventory-1 --step 0                     the team before training; default: the latest checkpoint
  marl-verl eval runs/inventory-1 --swap asker=holder          the two agents exchange their policies
  marl-verl eval recipe.yaml                                   the team of a recipe, without training
  marl-verl eval runs/inventory-1 --untrained asker            the asker acts with its untrained model
  marl-verl eval runs/inventory-1 --episodes 32 --k 1,8,32     pass@k from 32 sampled episodes a task
  marl-verl eval runs/kuhn-1 --cross-play --steps 0,50,100     these steps play each other: outcomes and Elo ratings
  marl-verl eval runs/magrpo_cpu-1 --partner right --steps 20,40   what the change of this agent is worth to the others
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Evaluate a team on held-out tasks: greedy success, avg@k and pass@k of sampled episodes, each with a 95 % "
        "confidence interval, and statistics of each agent. key=value changes how the team acts, e.g. "
        "marl.task.test_size=1000 or actor_rollout_ref.rollout.temperature=0.7."
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run directory, or a recipe")
    overrides = "config overrides that change how the team acts"
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help=overrides)
    add_variant_arguments(parser)
    add_plugin_argument(parser)
    add_backend_argument(parser)
    parser.add_argument("--step", type=int, metavar="N", help="checkpoint step (default: latest; 0: before training)")
    parser.add_argument("--tasks", type=int, metavar="N", help="only the first N held-out tasks")
    parser.add_argument("--episodes", type=int, metavar="K", help="sampled episodes per task (default: 8)")
    parser.add_argument("--k", type=numbers, metavar="1,4,8", help="values of k for pass@k, each at most --episodes")
    again: dict[str, Any] = {"action": "append", "default": []}
    parser.add_argument("--swap", **again, type=pair, metavar="a=b", help="agents a and b exchange their policies")
    untrained = "this agent acts with its policy's untrained model; may be repeated"
    parser.add_argument("--untrained", **again, metavar="NAME", help=untrained)
    parser.add_argument("--seed", type=int, metavar="S", help="sampling seed (default: the run's)")
    parser.add_argument("--greedy-only", action="store_true", help="skip the sampled episodes")
    at_once = "maximum number of episodes in flight (default: 256); 1 measures times without load"
    parser.add_argument("--at-once", type=int, default=256, metavar="N", help=at_once)
    cross_play = "checkpoints of a team with two sides play each other: mean outcomes of all pairs, and Elo ratings"
    parser.add_argument("--cross-play", action="store_true", help=cross_play)
    partner = "this agent acts with its policy of each of --steps, beside the team of the last: differences in rewards"
    parser.add_argument("--partner", dest="cross_play", metavar="NAME", help=partner)
    steps = "steps of the two (default: 0 and every checkpoint)"
    parser.add_argument("--steps", type=numbers, metavar="0,20,40", help=steps)


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def pair(text: str) -> tuple[str, str]:
    first, second = text.split("=")
    return first, second


def run(options: argparse.Namespace) -> int:
    from marl_verl_evaluation.request import Options  # here: --help needs none of it

    if options.variants:
        return show_variants(options.run)
    overrides = [*variant_overrides(options.run, options.variant), *options.overrides]
    names = {field.name for field in dataclasses.fields(Options)} - {"edit"}
    evaluated(options.run, overrides, options, **{name: getattr(options, name) for name in names})
    return 0


def evaluated(run: Path, overrides: list[str], options: argparse.Namespace, **chosen: Any) -> Path:
    """Evaluate and print the result. Returns the file of its episodes."""
    from marl_verl.run.progress import Display  # here: --help needs none of it
    from marl_verl_evaluation.api import evaluate
    from marl_verl_evaluation.results import results

    display = Display()
    done = evaluate(run, overrides, plugins=options.plugin, backend=options.backend, progress=display, **chosen)
    results(done.numbers, display)
    episodes = done.file.with_suffix(".jsonl")
    stored = f", episodes: marl-verl replay {episodes}" if episodes.exists() else ""
    display.print(f"results: {done.file}{stored}")
    return episodes
