"""Run a checked evaluation, store its result in the run directory, and print it."""

import itertools
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from marl_verl.episode import Episode
from marl_verl.evaluation.plan import FOLDER, EvaluationPlan
from marl_verl.evaluation.request import RESULT
from marl_verl.extensions import extension
from marl_verl.files import read_bytes, read_json, write_json
from marl_verl.inspect.run_files import read_episodes
from marl_verl.run.progress import Display
from marl_verl.run.run_dir import unpacked
from marl_verl.run.supervisor import start


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
        start("marl_verl.evaluation.run:evaluate", plan.folder, plan.config, display, begun, log, lock)
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
    base = "cross-play" if plan.request.pairings else f"{changed}_edit" if plan.request.rows else changed
    numbered = itertools.chain([base], (f"{base}_{number}" for number in itertools.count(2)))
    return next(path for name in numbered if not (path := evaluations / f"{name}.json").exists())


def _heading(plan: EvaluationPlan) -> str:
    request = plan.request
    if request.pairings:
        return str(extension("league", "cross-play").heading(plan.run, request, len(plan.tasks)))
    lines = [f"evaluation of run {plan.run}, step {request.step}"]
    for agent, assignment in request.assignments.items():
        lines.append(f"  agent   {agent} acts with policy {assignment.source}, {assignment.describe()}")
    sampled = f"{request.episodes} sampled episodes each" if request.episodes else "no sampled episodes"
    if not request.rows:
        lines.append(f"  test    {len(plan.tasks)} held-out tasks, greedily, and {sampled}, seed {request.seed}")
    return "\n".join(lines)


def results(document: dict[str, Any], display: Display) -> None:
    """Print the team's scores, a row for each agent, and totals; of a cross-play its matrix and ratings."""
    if "pairings" in document:
        extension("league", "cross-play").matrix(document, display)
        return
    display.console.print(_scores(document))
    for how, name in (("greedy", "sides"), ("sampled", "sides_sampled")):
        for side, scores_of_side in document.get(name, {}).items():
            low, high = scores_of_side["wins_interval"]
            wins = f"wins {scores_of_side['wins']:.1%} ({low:.1%} to {high:.1%})"
            wins += f", mean outcome {scores_of_side['outcome']:.3f}"
            display.print(f"side {side}, {how}: {wins}")
    display.console.print(_agents(document["agents"]))
    failed = ", ".join(f"{count} {reason}" for reason, count in document["failed_reasons"].items())
    display.print(
        f"{document['failed']} of {document['attempts']} attempts failed{f' ({failed})' if failed else ''}, "
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


def _agents(agents: dict[str, dict[str, Any]]) -> Table:
    table = Table("agent", title="agents, greedy pass", box=SIMPLE_HEAD, pad_edge=False)
    components = sorted({name for agent in agents.values() for name in agent["rewards"]})
    counts = {"turns": "turns", "tokens a turn": "response_length", "read a turn": "read_length"}
    shares = {"invalid": "invalid", "cut off": "cut_off"}
    for column in (*(f"reward: {name}" for name in components), *counts, *shares):
        table.add_column(column, justify="right", overflow="fold")
    for name, agent in agents.items():
        values = [(agent["rewards"].get(component), ".3f") for component in components]
        values += [(agent[key], ".1f") for key in counts.values()] + [(agent[key], ".1%") for key in shares.values()]
        table.add_row(name, *("-" if value is None else format(value, form) for value, form in values))
    return table
