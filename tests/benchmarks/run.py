"""`python -m tests.benchmarks.run`: what docs/benchmarks.md reports, measured side by side in one run.

    solo    a one-agent team                    against   stock verl 0.9 `main_ppo`: same model, data and settings
    large   the same with a pretrained model of 135M parameters, 4 tasks x 8 episodes a step
    two     two agents with separate policies   against   the same two agents sharing one policy

For each: seconds a step (median after the first two), seconds from command to the end of the first step, and the peak
memory of the whole process tree. Takes a quarter of an hour on two cores; run nothing else meanwhile.
"""

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

from marl_verl_tiny.model import ensure_all

from marl_verl.config.policy_models import pretrained_models
from marl_verl.run.prepare import plan_run
from tests.benchmarks import stock
from tests.benchmarks.measure import Measured, measure_run
from tests.sites import add_distribution, python_path

ROOT = Path(__file__).resolve().parents[2]
TINY = {"batch": 32, "prompt": 48, "longest": 64, "tokens": 65536, "lr": 5.0e-4}
LARGE = {"batch": 4, "prompt": 88, "longest": 96, "tokens": 640, "lr": 1.0e-5}
SETTINGS = """
data: {{train_batch_size: {batch}, max_prompt_length: {prompt}, max_response_length: 8}}
actor_rollout_ref:
  actor:
    ppo_mini_batch_size: {batch}
    ppo_max_token_len_per_gpu: {tokens}
    optim: {{lr: {lr}, lr_warmup_steps: 5, weight_decay: 0.01}}
  rollout: {{max_model_len: {longest}}}
trainer: {{total_training_steps: {steps}, test_freq: 1000, save_freq: -1}}
"""
COMPARED = (
    ("one-agent team", "stock verl"),
    ("one-agent team, 135M", "stock verl, 135M"),
    ("two agents, two policies", "two agents, one policy"),
)
SOLO = """
defaults: [marl_trainer, _self_]
marl:
  task: {{name: lookup, train_size: 4096, test_size: 20}}
  workflow: {{name: single}}
  algorithm: {{name: grpo}}
  agents: {{solver: {{policy: solver}}}}
  policies: {{solver: {{tiny: {{steps: 100, good: 0.2}}}}}}
"""
SOLO_LARGE = SOLO.replace("tiny: {{steps: 100, good: 0.2}}", "model: {{path: smollm2-135m}}")
PAIR = """
defaults: [marl_trainer, _self_]
marl:
  task: {{name: inventory, train_size: 4096, test_size: 20}}
  workflow: {{name: inventory}}
  agents: {{holder: {{policy: {holder}}}, asker: {{policy: {asker}}}}}
  policies: {{{policies}}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--only", choices=("solo", "large", "two"), help="one of the comparisons")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        bench = Path(folder)
        install_plugin(bench)
        results: dict[str, Measured] = {}
        for name, suffix, recipe, settings in (("solo", "", SOLO, TINY), ("large", ", 135M", SOLO_LARGE, LARGE)):
            if options.only in (None, name):
                results[f"one-agent team{suffix}"] = team(bench, name, recipe, options.steps, settings)
                results[f"stock verl{suffix}"] = stock.run(bench, name, options.steps)
        if options.only in (None, "two"):
            for name, policies in (
                ("two agents, one policy", ("both", "both")),
                ("two agents, two policies", ("a", "b")),
            ):
                results[name] = team(bench, f"two-{policies[0]}", pair(*policies), options.steps)
    print("| run | s/step (median) | s to the end of step 1 | peak memory, GiB |\n|---|---|---|---|")
    for name, seen in results.items():
        print(f"| {name} | {step_median(seen):.2f} | {seen.first_step:.0f} | {seen.peak_bytes / 2**30:.1f} |")
    for first, second in COMPARED:
        if first in results and second in results:
            print(f"step time, {first} / {second}: {step_median(results[first]) / step_median(results[second]):.2f}")


def pair(holder: str, asker: str) -> str:
    """The recipe of two agents with these policies."""
    policies = ", ".join(f"{name}: {{{{tiny: {{{{steps: 100}}}}}}}}" for name in dict.fromkeys((holder, asker)))
    return PAIR.replace("{holder}", holder).replace("{asker}", asker).replace("{policies}", policies)


def install_plugin(bench: Path) -> None:
    """Put the benchmark's plugin where every process finds it."""
    add_distribution(bench, "marl-bench", {"bench": "tests.benchmarks.plugin"})
    sys.path[:0] = [str(bench), str(ROOT)]
    os.environ |= python_path(bench, ROOT)


def team(bench: Path, name: str, recipe: str, steps: int, settings: dict[str, float] = TINY) -> Measured:
    """Train a team from a recipe text and measure it."""
    path = bench / f"{name}.yaml"
    path.write_text((recipe + SETTINGS).format(steps=steps, **settings))
    command = [sys.executable, "-m", "marl_verl.cli.main", "train", str(path)]
    plan = plan_run(path, [])  # models are made before the clock starts
    ensure_all(list(plan.made.values()))
    for model in pretrained_models(plan.config, plan.team).values():
        model.fetch()
    return measure_run([*command, f"marl.run.dir={bench}", f"marl.run.name={name}"], bench / name)


def step_median(seen: Measured) -> float:
    return statistics.median(seen.step_seconds[2:] or seen.step_seconds)


if __name__ == "__main__":
    main()
