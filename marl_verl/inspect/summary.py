"""The summary at the end of a run: success before and after, the learning curve, and suggested commands."""

import json
import os
import shlex
import shutil
import sys
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
    curve = draw_curve(folder)
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
    for name, policy in summary["policies"].items():
        size = "" if policy["parameters"] is None else f"{policy['parameters']:,} parameters, "
        display.print(f"policy {name}: {size}{'frozen' if policy['frozen'] else 'trained'}")
    if summary["steps"]:
        first = f"{summary['seconds_to_first_step']:.0f} s to the end of the first step"
        then = f"then {summary['seconds_per_step']:.1f} s a step"
        display.print(f"{summary['seconds_total']:.0f} s in all: {first}, {then}")
    checkpoint = f", checkpoint {folder / summary['checkpoint']}" if summary["checkpoint"] else ""
    display.print(f"curve {curve}, sample episodes {folder / 'episodes'}{checkpoint}")
    if commands := _next_commands(folder, bool(summary["checkpoint"])):
        display.print("next, try:")
    for command in commands:
        display.print(f"  {command}")


def _next_commands(folder: Path, saved: bool) -> list[str]:
    """Commands that work for this run, which has `saved` a checkpoint or not."""
    from marl_verl.config.backend import KEY, is_local
    from marl_verl.config.stored import read_config, team_of

    config = read_config(folder / "config.yaml")
    more = int(config.trainer.total_training_steps) * 2
    run = shlex.quote(str(folder))
    command = "marl-verl" if shutil.which("marl-verl") else os.path.relpath(Path(sys.executable).parent / "marl-verl")
    team = team_of(config)
    learner = next(agent.name for agent in team.agents.values() if team.policies[agent.policy].trained)
    commands = []
    if is_local(config) and config.marl.run.recipe:
        recipe = shlex.quote(config.marl.run.recipe)
        commands.append(f"{command} train {recipe} {KEY}=verl    # the same on Ray and vLLM")
    if RunDir(folder).stored("journals"):
        commands += [
            f"{command} report {run}    # curves, episodes and advantages as one HTML file",
            f"{command} replay {run}    # observations, actions and rewards",
        ]
    if saved:
        commands += [
            f"{command} eval {run} --untrained {learner}    # the team without what {learner} has learnt",
            f"{command} train --resume {run} trainer.total_training_steps={more}    # train on",
        ]
    return commands


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
