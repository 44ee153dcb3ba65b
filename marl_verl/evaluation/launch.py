"""Run a checked evaluation, store its result in the run directory, and print it."""

import itertools
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from marl_verl.episode import Episode
from marl_verl.evaluation.plan import FOLDER, EvaluationPlan
from marl_verl.evaluation.request import RESULT
from marl_verl.extensions import league
from marl_verl.files import read_bytes, read_json, write_json
from marl_verl.inspect.run_files import read_episodes
from marl_verl.run.progress import Display
from marl_verl.run.run_dir import unpacked
from marl_verl.run.supervisor import start

OF_AGENTS = ("turns", "response_length", "read_length", "invalid", "cut_off")
"""What is printed of an agent beside its rewards."""


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation.

    Attributes:
        numbers: e.g. `numbers["success"]`, `numbers["pass@8"]`; docs/evaluation.md describes every key.
        file: NAME.json with the numbers, in `evaluations/` of the run, next to NAME.jsonl and NAME.log.
    """

    numbers: dict[str, Any]
    file: Path

    @property
    def success(self) -> float:
        """The share of held-out tasks that the team solves with greedy decoding, 0 to 1."""
        return float(self.numbers["success"])

    def episodes(self) -> Iterator[Episode]:
        """The stored episodes of the greedy pass: those of the first `marl.rollout.keep_episodes` tasks. Of an edit all
        continuations."""
        return iter(read_episodes(self.file.with_suffix(".jsonl")).episodes.values())


def launch(plan: EvaluationPlan, display: Display, begun: float, lock: int | None = None) -> Evaluation:
    """Run an evaluation that was requested at time `begun`.

    `lock` is the descriptor of the run's `locked`. Log and episodes are kept in the run directory even if it fails.
    """
    display.print(_heading(plan))
    file = _free(plan)
    log = file.with_suffix(".log")
    log.unlink(missing_ok=True)
    try:
        plan.write()
        start("marl_verl.evaluation.run:evaluate", plan.folder, plan.config, display, begun, lock, log)
        result = read_json(plan.folder / RESULT)
    finally:
        for episodes in (plan.folder / "episodes").glob("step_*.jsonl*"):  # a long file is compressed
            file.with_suffix(".jsonl").write_bytes(unpacked(read_bytes(episodes), f"'{episodes}'"))
        shutil.rmtree(plan.folder, ignore_errors=True)
    numbers = {**result, "seconds": time.time() - begun, "settings": plan.settings}
    write_json(file, numbers)
    return Evaluation(numbers, file)


def _free(plan: EvaluationPlan) -> Path:
    """The path of step_N.json, with swaps and untrained agents in the name, and a number if the name is taken."""
    evaluations = plan.run / FOLDER
    evaluations.mkdir(exist_ok=True)
    swaps = [f"swap-{first}-{second}" for first, second in plan.settings["swap"]]
    untrained = [f"untrained-{agent}" for agent in plan.settings["untrained"]]
    changed = "_".join([f"step_{plan.request.step}", *swaps, *untrained])
    base = f"{changed}_edit" if plan.request.rows else "cross-play" if plan.request.pairings else changed
    numbered = itertools.chain([base], (f"{base}_{number}" for number in itertools.count(2)))
    return next(path for name in numbered if not (path := evaluations / f"{name}.json").exists())


def _heading(plan: EvaluationPlan) -> str:
    request = plan.request
    if request.pairings and not request.rows:
        return str(league().heading(plan.run, request, len(plan.tasks)))
    lines = [f"evaluation of run {plan.run}, step {request.step}"]
    for agent, assignment in request.assignments.items():
        lines.append(f"  agent   {agent} acts with policy {assignment.source}, {assignment.describe()}")
    sampled = f"{request.episodes} sampled episodes each" if request.episodes else "no sampled episodes"
    if not request.rows:
        lines.append(f"  test    {len(plan.tasks)} held-out tasks, greedily, and {sampled}, seed {request.seed}")
    return "\n".join(lines)


def results(document: dict[str, Any], display: Display) -> None:
    """Print the scores of team, sides and agents, and totals; of a cross-play its matrix and ratings."""
    if "pairings" in document:
        league().matrix(document, display)
        return
    display.console.print(_scores(document))
    for name in ("sides", "sides_sampled"):
        for side, scores in document.get(name, {}).items():
            low, high = scores["wins_interval"]
            wins = f"wins {scores['wins']:.1%} ({low:.1%} to {high:.1%}), mean outcome {scores['outcome']:.3f}"
            display.print(f"{name.replace('_', ', ')}: {side} {wins}")
    for agent, numbers in document["agents"].items():
        measures = {f"reward {name}": value for name, value in numbers["rewards"].items()}
        measures |= {name: numbers[name] for name in OF_AGENTS}
        known = (f"{name} {value:.3g}" for name, value in measures.items() if value is not None)
        display.print(f"agent {agent}, greedy: {', '.join(known)}")
    failed = "".join(f", {count} {reason}" for reason, count in document["failed_reasons"].items())
    display.print(
        f"{document['failed']} of {document['attempts']} attempts failed{failed}; "
        f"{document['tokens']:,} tokens ({document['tokens_per_second'] or 0:,.0f} tokens/s, "
        f"{document['answer_seconds'] or 0:.2f} s an answer), {document['seconds']:.0f} s in total"
    )


def _scores(document: dict[str, Any]) -> Table:
    """A row for each score, in a column of each public set and of all tasks."""
    table = Table(title=f"step {document['step']}, {document['eval_tasks']} held-out tasks, 95 % intervals")
    columns = {f"{name}, {scores['eval_tasks']} tasks": scores for name, scores in document.get("sets", {}).items()}
    columns["team"] = document
    table.add_column("", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right")
    for name in (name.removesuffix("_interval") for name in document if name.endswith("_interval")):
        cells = []
        for scores in columns.values():
            low, high = scores[f"{name}_interval"]
            cells.append(f"{scores[name]:.1%} ({100 * low:.1f} to {100 * high:.1f})")
        table.add_row("success, greedy" if name == "success" else name, *cells)
    for name in document.get("answer", {}):
        table.add_row(name, *(f"{scores.get('answer', {}).get(name, 0.0):.3f}" for scores in columns.values()))
    return table
