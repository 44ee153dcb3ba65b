"""A pretrained language model, with all its weights and as an adapter, beside a tiny one: trained, exported, evaluated.

The actions of step 2 were sampled with the weights of checkpoint 1. The servers compute in bfloat16 where the CPU has
instructions for it, and then receive the adapter merged.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from marl_verl_testing.real import command
from marl_verl_tiny.pretrained import SMOLLM2

from tests.e2e.conftest import Finished, train
from tests.served import acts_of, gaps

pytestmark = [pytest.mark.e2e, pytest.mark.long]  # recipes/quickstart/pretrained.yaml is `make demo-pretrained`
PLUGIN = """
import random
from marl_verl import Task, TaskSet, Workflow, hookimpl

class Digits(TaskSet):
    def generate(self, split, count, seed):
        pairs = [(a, b) for a in range(10) for b in range(10) if (a + b) % 2 == (split == "test")]
        return [Task(f"{a} {b}", f"digits {a} {b}") for a, b in random.Random(seed).sample(pairs, count)]

    def score(self, task, answer):  # half of all texts, so that the episodes of a task differ
        return float(sum(map(ord, answer)) % 2)

    def vocabulary(self):
        return ["digits", *"0123456789"]

    def demonstrations(self, agent, count, seed, good):
        return [(f"digits {n % 10} {n // 10 % 10}", str(n % 10)) for n in range(count)]

class Each(Workflow):
    async def run(self, task, team):
        return "".join([(await team[agent].act(task.prompt)).text for agent in team.agents])

@hookimpl
def marl_register(registry):
    registry.task("digits", Digits)
    registry.workflow("each", Each)
"""
RECIPE = """
defaults: [marl_trainer, _self_]
marl:
  run: {journal_tokens: true}
  plugins: [digits.py]
  task: {name: digits, train_size: 40, test_size: 2}
  workflow: {name: each}
  sampler: {options: {episodes: 4}}
  agents:
    full: {policy: full, instructions: Say it.}
    lora: {policy: lora, instructions: Say it.}
    tiny: {policy: tiny}
  policies:
    full: {model: {path: smollm2-135m}, actor: {optim: {lr: 2.0e-5}}}
    lora: {model: {path: smollm2-135m, lora_rank: 8, lora_alpha: 16}, actor: {optim: {lr: 1.0e-3}}}
    tiny: {tiny: {steps: 20}}
data: {train_batch_size: 2, max_prompt_length: 48, max_response_length: 6}
actor_rollout_ref:
  actor: {ppo_mini_batch_size: 2}
  rollout: {max_model_len: 64}
trainer: {total_training_steps: 2, test_freq: 2, save_freq: 1, val_before_train: false}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    place = tmp_path_factory.mktemp("pretrained")
    (place / "digits.py").write_text(PLUGIN)
    (place / "recipe.yaml").write_text(RECIPE)
    SMOLLM2.fetch()
    return train(place / "run", recipe=place / "recipe.yaml")


def test_every_policy_learns(run: Finished) -> None:
    assert run.code == 0, run.output
    for name in ("full", "lora", "tiny"):
        assert all(line[f"policy/{name}/grad_norm"] > 0 for line in run.lines(f"policy/{name}/grad_norm"))


@pytest.mark.parametrize(("policy", "options"), [("full", []), ("lora", ["--merge"])])
def test_the_servers_have_the_exported_weights(run: Finished, tmp_path: Path, policy: str, options: list[str]) -> None:
    output = str(tmp_path / policy)
    command("export", str(run.folder), "--policy", policy, "--step", "1", "--output", output, *options)
    acts = acts_of(run, 2, policy)
    assert len(acts) == 8
    served, before = (float(gaps(folder, acts).mean()) for folder in (tmp_path / policy, SMOLLM2.folder()))
    assert served < 0.15  # bfloat16 against float32: 0.05 in transformers alone
    assert before > 2 * served  # the update changed the weights
