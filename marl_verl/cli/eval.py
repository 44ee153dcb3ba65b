"""`marl-verl eval RUN`: how good the team is on held-out tasks, also with policies exchanged or put back to before."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from marl_verl.cli.eval_plan import FOLDER, Plan, plan
from marl_verl.cli.eval_text import EvaluationDisplay, heading, results
from marl_verl.cli.output import show
from marl_verl.cli.progress import Display
from marl_verl.cli.trainer_process import TrainerProcess
from marl_verl.errors import MarlError
from marl_verl.evaluation.request import RESULT

EXAMPLES = """
  marl-verl eval runs/inventory-1                              the newest checkpoint, on all held-out tasks
  marl-verl eval runs/inventory-1 --step 0                     the team before training
  marl-verl eval runs/inventory-1 --swap asker=holder          the two agents exchange their policies
  marl-verl eval runs/inventory-1 --untrained asker            the asker acts with its model from before training
  marl-verl eval runs/inventory-1 --sessions 32 --k 1,8,32     pass@k from 32 sampled sessions a task
  marl-verl eval runs/inventory-1 --greedy-only --json         for programs; progress goes to standard error
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Measure a team on held-out tasks: success played greedily, avg@k and pass@k of sampled sessions, each with a "
        "95 % confidence interval, and what each agent did. key=value changes how the team plays, e.g. "
        "marl.task.test_size=1000 or actor_rollout_ref.rollout.temperature=0.7."
    )
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("run", nargs="?", type=Path, metavar="RUN", help="a run directory")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="how the team plays")
    parser.add_argument("--step", type=int, metavar="N", help="of which checkpoint; left out: the newest; 0: untrained")
    parser.add_argument("--tasks", type=int, metavar="N", help="only the first N held-out tasks")
    parser.add_argument("--sessions", type=int, metavar="K", help="sampled sessions of each task (8)")
    parser.add_argument("--k", metavar="1,4,8", help="of pass@k, each at most --sessions")
    parser.add_argument(
        "--swap", action="append", default=[], metavar="a=b", help="agents a and b exchange their policies"
    )
    parser.add_argument(
        "--untrained",
        action="append",
        default=[],
        metavar="NAME",
        help="this agent acts with its policy's model from before training; may be repeated",
    )
    parser.add_argument("--seed", type=int, metavar="S", help="of sampling; left out: the run's")
    parser.add_argument("--greedy-only", action="store_true", help="without the sampled sessions")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write that object to a file, too")


def run(options: argparse.Namespace) -> int:
    """Exit code 0; 2 for a mistake in what the user gave, 1 for a crash, 130 after Ctrl-C."""
    begun = time.time()
    _check_output(options.output)
    found = plan(options)
    console = Console(stderr=True, highlight=False, soft_wrap=True) if options.json else None
    display = EvaluationDisplay(console)
    display.print(heading(found))
    evaluations = found.run / FOLDER
    evaluations.mkdir(exist_ok=True)
    name = _name(found, evaluations)
    try:
        found.write()
        code = _play(found, evaluations / name, display, begun, options.debug)
        if code:
            return code
        result = json.loads((found.folder / RESULT).read_text(encoding="utf-8"))
    finally:
        shutil.rmtree(found.folder, ignore_errors=True)
    document = _document(found, result, time.time() - begun)
    said = json.dumps(document, indent=1)
    for path in (evaluations / f"{name}.json", options.output):
        if path is not None:
            _write(path, said)
    if options.json:
        show(said)
    else:
        results(document, display)
        display.print(f"in {evaluations / name}.json, episodes: marl-verl replay {evaluations / name}.jsonl")
    return 0


def _play(found: Plan, kept: Path, display: Display, begun: float, debug: bool) -> int:
    """Run the process that plays; its log and its episodes stay, whatever happens. Returns its exit code."""
    process = TrainerProcess(found.folder, list(found.team.policies), debug=debug, module="marl_verl.trainer.evaluate")
    process.log = kept.with_name(f"{kept.name}.log")
    process.log.unlink(missing_ok=True)
    code = process.run(display, begun)
    for episodes in (found.folder / "episodes").glob("step_*.jsonl"):
        shutil.move(episodes, kept.with_name(f"{kept.name}.jsonl"))
    return code


def _document(found: Plan, result: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The numbers, and what they are of."""
    keys = ("swap", "untrained")
    return {**result, **{key: found.settings[key] for key in keys}, "seconds": seconds, "settings": found.settings}


def _name(found: Plan, evaluations: Path) -> str:
    """step_N, and what was changed; numbered where another evaluation has that name."""
    swaps = [f"swap-{first}-{second}" for first, second in found.settings["swap"]]
    untrained = [f"untrained-{agent}" for agent in found.settings["untrained"]]
    base = "_".join([f"step_{found.request.step}", *swaps, *untrained])
    name, number = base, 1
    while _taken(evaluations / f"{name}.json", found.settings):
        number += 1
        name = f"{base}_{number}"
    return name


def _taken(path: Path, settings: dict[str, Any]) -> bool:
    """Whether a file has the result of another evaluation; the same one is played again in its place."""
    if not path.is_file():
        return False
    try:
        return bool(json.loads(path.read_text(encoding="utf-8"))["settings"] != settings)
    except (ValueError, KeyError, TypeError):
        return True


def _check_output(path: Path | None) -> None:
    """Refuse now what could not be written in minutes."""
    if path is None:
        return
    if path.is_dir():
        raise MarlError(f"--output '{path}' is a folder: name a file")
    parent = path.resolve().parent
    if not parent.is_dir() or not os.access(path if path.exists() else parent, os.W_OK):
        raise MarlError(f"--output '{path}' cannot be written to")


def _write(path: Path, said: str) -> None:
    try:
        path.write_text(said + "\n", encoding="utf-8")
    except OSError as error:
        raise MarlError(f"'{path}' cannot be written: {error.strerror}") from error
