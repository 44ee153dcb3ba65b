"""The summary at the end of a run: success before and after, and what to look at next."""

import shlex
from pathlib import Path

from marl_verl.files import read_json
from marl_verl.run.progress import Display
from marl_verl.run.run_dir import RunDir


def show(folder: Path, display: Display) -> None:
    """Print success before and after, and suggest commands."""
    summary, run = read_json(folder / "summary.json"), shlex.quote(str(folder))
    display.print(f"{summary['steps']} steps, {summary['eval_tasks']} held-out tasks (95 % interval)")
    for when in ("before", "after"):
        if (success := summary[f"success_{when}"]) is not None:
            low, high = summary[f"success_{when}_interval"]
            greedy = f"team success, greedy {success:.1%} ({100 * low:.1f} to {100 * high:.1f})"
            answers = "".join(f", {name} {value:.3f}" for name, value in summary[f"answer_{when}"].items())
            display.print(f"{when}: {greedy}, sampled {summary[f'success_{when}_sampled']:.1%}{answers}")
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
