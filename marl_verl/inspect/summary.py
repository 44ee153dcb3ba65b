"""The summary at the end of a run: success before and after, and what to look at next."""

import shlex
from pathlib import Path

from rich.table import Table

from marl_verl.files import read_json
from marl_verl.run.progress import Display
from marl_verl.run.run_dir import RunDir


def show(folder: Path, display: Display) -> None:
    """Print the table, and suggest commands."""
    summary, run = read_json(folder / "summary.json"), shlex.quote(str(folder))
    table = Table(title=f"{summary['steps']} steps, {summary['eval_tasks']} held-out tasks (95 % interval)")
    greedy, sampled = ["team success, greedy"], ["team success, sampled"]
    table.add_column("", no_wrap=True)
    whens = ("after",) if summary["success_before"] is None else ("before", "after")
    for when in whens:
        table.add_column(when, justify="right", no_wrap=True)
        low, high = summary[f"success_{when}_interval"]
        greedy.append(f"{summary[f'success_{when}']:.1%} ({100 * low:.1f} to {100 * high:.1f})")
        sampled.append(f"{summary[f'success_{when}_sampled']:.1%}")
    table.add_row(*greedy)
    table.add_row(*sampled)
    for name in summary.get("answer_after", {}):
        values = [summary[f"answer_{when}"].get(name) for when in whens]
        table.add_row(f"{name}, greedy", *("-" if value is None else f"{value:.3f}" for value in values))
    display.console.print(table)
    if summary["steps"]:
        first = f"{summary['seconds_to_first_step']:.0f} s to the end of the first step"
        then = f"then {summary['seconds_per_step']:.1f} s a step"
        display.print(f"{summary['seconds_total']:.0f} s in all: {first}, {then}")
    if summary["checkpoint"]:
        display.print(f"checkpoint {folder / summary['checkpoint']}")
    files = RunDir(folder)
    stored = {"replay": files.stored("journals"), "explain": files.stored("rows"), "eval": summary["checkpoint"]}
    if commands := [f"marl-verl {command} {run}" for command, content in stored.items() if content]:
        display.print(f"next, try: {', '.join(commands)}")
