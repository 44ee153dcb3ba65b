"""Compare runs: held-out success, gradient norms of each policy, amplification of each agent.

    python recipes/dr_mas/compare.py runs/method runs/grpo

The paper's claim is that spikes of the gradient norm disappear: `max/median` is over the steps of a run. Amplification
is the effect that one mean and std for all agents would have, `A^2` the second moment of the actual advantages.
"""

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Line = Mapping[str, Any]


def table(folder: Path) -> list[str]:
    """The lines of one run."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [line for line in lines if "train/success" in line]
    low, high = summary["success_after_interval"]
    message = [
        f"{folder.name}: {summary['steps']} steps, held-out success of {summary['eval_tasks']} tasks",
        f"  greedy {summary['success_before']:.1%} -> {summary['success_after']:.1%} ({low:.1%} to {high:.1%}), "
        f"sampled {summary['success_before_sampled']:.1%} -> {summary['success_after_sampled']:.1%}",
    ]
    for name in summary["policies"]:
        norms = column(steps, f"policy/{name}/grad_norm")
        if norms:
            median = statistics.median(norms)
            message.append(
                f"  policy {name}: gradient norm median {median:.3f}, max {max(norms):.3f}, max/median "
                f"{max(norms) / median:.1f}"
            )
    for name in summary["agents"]:
        whole, spread, shift, moment = (
            statistics.fmean(column(steps, f"agent/{name}/{what}") or [float("nan")])
            for what in ("amplification", "amplification/spread", "amplification/shift", "second_moment")
        )
        message.append(
            f"  agent {name}: amplification {whole:.3f} (spread {spread:.4f} + shift {shift:.3f}), A^2 {moment:.3f}"
        )
    return message


def column(steps: Sequence[Line], metric: str) -> list[float]:
    """A metric over the steps that have it."""
    return [float(line[metric]) for line in steps if metric in line]


def main(folders: Sequence[str]) -> int:
    """Print the runs. Exit code 2 and an error message for a folder that is not a finished run."""
    for folder in map(Path, folders):
        if not (folder / "summary.json").is_file():
            print(f"compare: '{folder}' is no run that has ended: it has no summary.json", file=sys.stderr)
            return 2
        print("\n".join(table(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
