"""The summary at the end of a run: success before and after, the learning curve, and suggested commands."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

from rich.table import Table

from marl_verl.process.progress import Display


def show(folder: Path, display: Display) -> None:
    """Print the table, draw curve.png, and suggest commands."""
    summary = json.loads((folder / "summary.json").read_text())
    curve = draw_curve(folder)
    table = Table(title=f"{summary['steps']} steps, {summary['eval_tasks']} held-out tasks (95 % interval)")
    greedy, sampled = ["team success, greedy"], ["team success, sampled"]
    table.add_column("", no_wrap=True)
    for when in ("before", "after"):
        table.add_column(when, justify="right", no_wrap=True)
        low, high = summary[f"success_{when}_interval"]
        greedy.append(f"{summary[f'success_{when}']:.1%} ({100 * low:.1f} to {100 * high:.1f})")
        sampled.append(f"{summary[f'success_{when}_sampled']:.1%}")
    table.add_row(*greedy)
    table.add_row(*sampled)
    display.console.print(table)
    for name, policy in summary["policies"].items():
        change = "trained, no checkpoint saved"
        if policy["frozen"]:
            change = "frozen"
        elif policy["weight_change"] is not None:
            change = f"weights changed by {policy['weight_change']:.1%}"
        size = policy["parameters"]
        detail = "external endpoint, frozen" if size is None else f"{size:,} parameters, {change}"
        display.print(f"policy {name}: {detail}")
    if summary["steps"]:
        first = f"{summary['seconds_to_first_step']:.0f} s to the end of the first step"
        then = f"then {summary['seconds_per_step']:.1f} s a step"
        display.print(f"{summary['seconds_total']:.0f} s in all: {first}, {then}")
    checkpoint = f", checkpoint {folder / summary['checkpoint']}" if summary["checkpoint"] else ""
    display.print(f"curve {curve}, sample episodes {folder / 'episodes'}{checkpoint}")
    display.print("next, try:")
    for command in _next_commands(folder):
        display.print(f"  {command}")


def _next_commands(folder: Path) -> list[str]:
    from marl_verl.config.stored import read_config, team_of

    config = read_config(folder / "config.yaml")
    more = int(config.trainer.total_training_steps) * 2
    recipe = config.marl.run.get("recipe") or "RECIPE"
    command = "marl-verl" if shutil.which("marl-verl") else os.path.relpath(Path(sys.executable).parent / "marl-verl")
    team = team_of(config)
    learning = [name for name, policy in team.policies.items() if policy.trained]
    learner = next(agent.name for agent in team.agents.values() if agent.policy in learning)
    commands = [
        f"{command} replay --run {folder}    # observations, actions and rewards",
        f"{command} eval {folder} --untrained {learner}    # the team without what {learner} has learnt",
        f"{command} train --resume {folder} trainer.total_training_steps={more}    # train on",
    ]
    freezable = [name for name in learning if not team.policies[name].lora_rank and not team.policies[name].loss]
    if freezable and len(learning) > 1:
        frozen = f"marl.policies.{freezable[0]}.frozen=true"
        commands.append(f"{command} train {recipe} {frozen}    # can the others learn alone?")
    return commands


def draw_curve(folder: Path) -> Path:
    """Team success over steps, held-out and in training, from metrics.jsonl."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    figure, axes = plt.subplots(figsize=(7, 4), dpi=120)
    for metric, label, style in (
        ("train/success", "training tasks, sampled", {"color": "tab:gray", "alpha": 0.5, "linewidth": 1}),
        ("validation/success_sampled", "held-out, sampled", {"color": "tab:blue", "marker": "o", "linestyle": "--"}),
        ("validation/success", "held-out, greedy", {"color": "tab:blue", "marker": "o"}),
    ):
        points = [(line["step"], line[metric]) for line in lines if metric in line]
        axes.plot([step for step, _ in points], [value for _, value in points], label=label, **style)
    axes.set(xlabel="step", ylabel="team success", ylim=(0, 1), title=folder.name)
    axes.grid(alpha=0.3)
    axes.legend(loc="best")
    figure.tight_layout()
    figure.savefig(folder / "curve.png")
    plt.close(figure)
    return folder / "curve.png"
