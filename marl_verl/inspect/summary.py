"""The summary at the end of a run: success before and after, the learning curve, and what to look at next."""

import json
import shlex
from pathlib import Path

from rich.table import Table

from marl_verl.files import read_json, read_text
from marl_verl.run.progress import Display
from marl_verl.run.run_dir import RunDir

SHORT = 30
"""Points up to which each is marked: a line of one point is invisible."""


def show(folder: Path, display: Display) -> None:
    """Print the table, draw curve.png, and suggest commands."""
    summary = read_json(folder / "summary.json")
    curve, run = draw_curve(folder), shlex.quote(str(folder))
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
    checkpoint = f", checkpoint {folder / summary['checkpoint']}" if summary["checkpoint"] else ""
    display.print(f"curve {curve}{checkpoint}")
    files = RunDir(folder)
    stored = {"replay": files.stored("journals"), "explain": files.stored("rows"), "eval": summary["checkpoint"]}
    if commands := [f"marl-verl {command} {run}" for command, content in stored.items() if content]:
        display.print(f"next, try: {', '.join(commands)}")


def draw_curve(folder: Path) -> Path:
    """Team success over steps, held-out and in training, from metrics.jsonl."""
    from matplotlib.figure import Figure  # not pyplot, whose backend belongs to a notebook
    from matplotlib.ticker import MaxNLocator

    lines = [json.loads(line) for line in read_text(folder / "metrics.jsonl").splitlines()]
    figure = Figure(figsize=(7, 4), dpi=120)
    axes = figure.subplots()
    for metric, label, style in (
        ("train/success", "training tasks, sampled", {"color": "tab:gray", "alpha": 0.5, "linewidth": 1}),
        ("validation/success_sampled", "held-out, sampled", {"color": "tab:blue", "marker": "o", "linestyle": "--"}),
        ("validation/success", "held-out, greedy", {"color": "tab:blue", "marker": "o"}),
    ):
        points = [(line["step"], line[metric]) for line in lines if metric in line]
        if len(points) <= SHORT:
            style = {"marker": "o", **style}
        axes.plot([step for step, _ in points], [value for _, value in points], label=label, **style)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="step", ylabel="team success", ylim=(-0.03, 1.03), title=folder.name)
    axes.grid(alpha=0.3)
    axes.legend(loc="best")
    figure.tight_layout()
    figure.savefig(folder / "curve.png")
    return folder / "curve.png"
