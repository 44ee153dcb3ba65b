"""`marl-verl eval RUN`: how good the team is on held-out tasks, also with policies exchanged or put back to before."""

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from marl_verl.api import evaluate
from marl_verl.cli.arguments import add_plugin_argument
from marl_verl.errors import MarlError
from marl_verl.evaluation.launch import results
from marl_verl.process.progress import Display
from marl_verl.process.terminal import show

EXAMPLES = """
  marl-verl eval runs/inventory-1                              the newest checkpoint, on all held-out tasks
  marl-verl eval runs/inventory-1 --step 0                     the team before training
  marl-verl eval runs/inventory-1 --swap asker=holder          the two agents exchange their policies
  marl-verl eval runs/inventory-1 --untrained asker            the asker acts with its model from before training
  marl-verl eval runs/inventory-1 --sessions 32 --k 1,8,32     pass@k from 32 sampled sessions a task
  marl-verl eval runs/inventory-1 --greedy-only --json         for programs; progress goes to standard error
"""

PASSED_ON = ("step", "tasks", "sessions", "k", "swap", "untrained", "seed", "greedy_only", "output")
"""Options that are arguments of `evaluate`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Measure a team on held-out tasks: success played greedily, avg@k and pass@k of sampled sessions, each with a "
        "95 % confidence interval, and what each agent did. key=value changes how the team plays, e.g. "
        "marl.task.test_size=1000 or actor_rollout_ref.rollout.temperature=0.7."
    )
    parser.add_argument("run", nargs="?", type=Path, metavar="RUN", help="a run directory")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="how the team plays")
    add_plugin_argument(parser)
    parser.add_argument("--step", type=int, metavar="N", help="of which checkpoint; left out: the newest; 0: untrained")
    parser.add_argument("--tasks", type=int, metavar="N", help="only the first N held-out tasks")
    parser.add_argument("--sessions", type=int, metavar="K", help="sampled sessions of each task (8)")
    parser.add_argument("--k", metavar="1,4,8", help="of pass@k, each at most --sessions")
    again: dict[str, Any] = {"action": "append", "default": []}
    parser.add_argument("--swap", **again, metavar="a=b", help="agents a and b exchange their policies")
    untrained = "this agent acts with its policy's model from before training; may be repeated"
    parser.add_argument("--untrained", **again, metavar="NAME", help=untrained)
    parser.add_argument("--seed", type=int, metavar="S", help="of sampling; left out: the run's")
    parser.add_argument("--greedy-only", action="store_true", help="without the sampled sessions")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write that object to a file, too")


def run(options: argparse.Namespace) -> int:
    if options.run is None:
        raise MarlError("which run? e.g. marl-verl eval runs/NAME")
    display = Display(Console(stderr=True, highlight=False, soft_wrap=True) if options.json else None)
    given = {name: getattr(options, name) for name in PASSED_ON}
    done = evaluate(options.run, options.overrides, plugins=options.plugin, progress=display, **given)
    if options.json:
        show(json.dumps(done.numbers, indent=1))
    else:
        results(done.numbers, display)
        display.print(f"in {done.file}, episodes: marl-verl replay {done.file.with_suffix('.jsonl')}")
    return 0
