"""`python -m tests.benchmarks.merging`: updates of a six-turn conversation with and without merged turns.

Two runs of one team, one after the other, which differ in `marl.run.merge_turns` only. For each: median seconds of an
update after the first two steps, summed over both policies, and the tokens of an update. `--large`: with two pretrained
models of 135M parameters.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.measure import measure
from tests.benchmarks.run import ROOT

TALK = ROOT / "tests" / "e2e" / "talk.py"
RECIPE = """
defaults: [marl_trainer, _self_]
marl:
  plugins: [{talk}]
  task: {{name: inventory, train_size: 4096, test_size: 4}}
  workflow: {{name: talk, options: {{rounds: 6}}}}
  sampler: {{options: {{episodes: 8}}}}
  algorithm: {{name: grpo}}
  agents: {{holder: {{policy: holder}}, asker: {{policy: asker}}}}
  policies: {{holder: {{{model}}}, asker: {{{model}}}}}
data: {{train_batch_size: {batch}, max_prompt_length: {prompt}, max_response_length: 8}}
actor_rollout_ref:
  actor: {{ppo_mini_batch_size: {batch}, ppo_max_token_len_per_gpu: {tokens}, optim: {{lr: 1.0e-5}}}}
  rollout: {{max_model_len: {context}}}
trainer: {{total_training_steps: {steps}, test_freq: 1000, save_freq: -1}}
"""
TINY = {"model": "tiny: {steps: 100, good: 0.4}", "batch": 32, "prompt": 248, "context": 256, "tokens": 8192}
LARGE = {"model": "model: {path: smollm2-135m}", "batch": 2, "prompt": 632, "context": 640, "tokens": 640}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--large", action="store_true", help="two pretrained models of 135M parameters")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    print("| turns | s/update (median) | tokens/update | rows/update |")
    print("|---|---|---|---|")
    seconds = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        path = Path(folder) / "talk.yaml"
        path.write_text(RECIPE.format(talk=TALK, steps=options.steps, **(LARGE if options.large else TINY)))
        for merged in (True, False):
            seconds[merged] = report(Path(folder), path, merged)
    print(f"update time, merged / separate: {seconds[True] / seconds[False]:.2f}")


def report(folder: Path, recipe: Path, merged: bool) -> float:
    """Train, print a line of the table, and return the median seconds of an update."""
    name = "merged" if merged else "separate"
    command = [sys.executable, "-m", "marl_verl.cli.main", "train", str(recipe), f"marl.run.dir={folder}"]
    measure([*command, f"marl.run.name={name}", f"marl.run.merge_turns={str(merged).lower()}"], folder)
    lines = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "seconds/step" in line][2:]

    def median(metric: str) -> float:
        return statistics.median(
            sum(line[f"policy/{policy}/{metric}"] for policy in ("holder", "asker")) for line in steps
        )

    found = median("update_seconds")
    print(f"| {name} | {found:.2f} | {median('tokens/trained'):.0f} | {median('merge/rows_after'):.0f} |", flush=True)
    return found


if __name__ == "__main__":
    main()
