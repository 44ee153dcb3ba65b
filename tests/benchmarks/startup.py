"""How long the quick commands take from the shell to their last line, beside stock verl's `--help`.

    python -m tests.benchmarks.startup        # --rounds for more

Commands take turns, so that a busy moment of the machine meets all of them. Aim: each of ours under a second.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MAIN = [sys.executable, "-m", "marl_verl.cli.main"]
PEER = "verl main_ppo --help"
ROW = {"uid": "q", "index": 0, "turn": 0, "agent": "solver", "length": 3}
BATCH = [{**ROW, "session": s, "rewards": {"team": s / 4}} for s in range(4)]


def commands(folder: Path) -> dict[str, list[str]]:
    """Name -> command; what they need is written into `folder`."""
    rows = folder / "rows.json"
    rows.write_text(json.dumps({"algorithm": "grpo", "options": {}, "rows": BATCH}), encoding="utf-8")
    return {
        "marl-verl --help": [*MAIN, "--help"],
        "marl-verl plugins": [*MAIN, "plugins"],
        "marl-verl explain": [*MAIN, "explain", str(rows)],
        "marl-verl new-plugin": [*MAIN, "new-plugin", "my-method", "--output"],
        PEER: [sys.executable, "-m", "verl.trainer.main_ppo", "--help"],
    }


def seconds(command: list[str], folder: Path) -> float:
    """Of one call, from a cold process."""
    begun = time.monotonic()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return time.monotonic() - begun


def measure(rounds: int) -> dict[str, float]:
    """Name -> median seconds."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        taken: dict[str, list[float]] = {name: [] for name in commands(folder)}
        for number in range(rounds + 1):
            for name, command in commands(folder).items():
                place = [str(folder / f"made-{number}")] if command[-1] == "--output" else []
                once = seconds([*command, *place], folder)
                if number:  # the first round warms the file cache
                    taken[name].append(once)
    return {name: statistics.median(values) for name, values in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    medians = measure(parser.parse_args().rounds)
    for name, median in medians.items():
        print(f"{name:<24s} {median:6.2f} s   {median / medians[PEER]:.2f} of stock verl's")


if __name__ == "__main__":
    main()
