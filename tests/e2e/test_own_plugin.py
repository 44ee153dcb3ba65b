"""A user's own workflow, reward and task in one file outside the repository train without touching the core.

The team has three agents: two share a policy and move at once, the third acts with a frozen policy of its own.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.e2e.conftest import Finished, train

pytestmark = pytest.mark.e2e

PLUGIN = '''
import random
from marl_verl import Task, TaskSet, Workflow, hookimpl

DIGITS = "0123456789"

class Relay(TaskSet):
    """One digit, to be said by everybody."""
    def generate(self, split, count, seed):
        rng = random.Random(f"{split}{seed}")
        first = 0 if split == "train" else 10**6
        return [Task(f"relay-{first + i}", "say the digit", {"digit": rng.choice(DIGITS)}) for i in range(count)]

    def score(self, task, answer):
        return float(answer == task.data["digit"])

    def vocabulary(self):
        return ["digit", "heard", *DIGITS]

    def demonstrations(self, agent, count, seed, good):
        rng = random.Random(f"{agent}{seed}")
        digits = [rng.choice(DIGITS) for _ in range(count)]
        return [(f"digit {d}", d if rng.random() < good else rng.choice(DIGITS)) for d in digits]

class AllSayIt(Workflow):
    async def run(self, task, team):
        shown = f"digit {task.data['digit']}"
        said = await team.act({"left": shown, "right": shown})
        if task.data["digit"] < "3":    # some episodes are longer: the batch does not divide, rows of padding are added
            await team["left"].act(shown)
        heard = await team["listener"].act(shown)
        await team.call(len, heard.text)
        return said["left"].text if said["left"].text == said["right"].text else "none"

def said_it(task, turn, episode):
    return float(turn.action.text == task.data["digit"])

@hookimpl
def marl_register_tasks(register):
    register("relay", Relay)

@hookimpl
def marl_register_workflows(register):
    register("all-say-it", AllSayIt)

@hookimpl
def marl_register_rewards(register):
    register("said-it", said_it)
'''

RECIPE = """
defaults: [marl_trainer, _self_]
marl:
  task: {name: relay, train_size: 256, test_size: 40}
  workflow: {name: all-say-it}
  algorithm: {name: grpo}
  agents:
    left: {policy: shared, reward: said-it}
    right: {policy: shared, reward: said-it}
    listener: {policy: fixed, reward: said-it}
  policies:
    shared: {tiny: {steps: 40, good: 0.5}}
    fixed: {frozen: true, tiny: {steps: 20, good: 0.5}}
  sampler: {sessions: 3}
data: {train_batch_size: 16, max_prompt_length: 48, max_response_length: 8}
actor_rollout_ref:
  actor: {ppo_mini_batch_size: 2, optim: {lr: 1.0e-3}}
  rollout: {max_model_len: 64}
trainer: {total_training_steps: 3, test_freq: 3, save_freq: 3}
"""


def train_with(plugin: str, site: Path, folder: Path) -> Finished:
    """Train the recipe with a plugin that is installed in `site` only."""
    (site / "relay_plugin.py").write_text(plugin)
    info = site / "relay_plugin-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: relay-plugin\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[marl_verl]\nrelay = relay_plugin\n")
    recipe = site / "relay.yaml"
    recipe.write_text(RECIPE)
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    return train(folder, recipe=recipe, PYTHONPATH=path)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    done = train_with(PLUGIN, tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("runs") / "relay")
    assert done.code == 0, done.output
    return done


def test_it_trains(run: Finished) -> None:
    assert [line["step"] for line in run.lines("train/success")] == [1, 2, 3]
    assert run.lines("train/success")[0]["train/failed_episodes"] == 0


def test_agents_that_share_a_policy_keep_their_own_metrics(run: Finished) -> None:
    agents = run.summary["agents"]
    assert set(agents) == {"left", "right", "listener"}
    for values in agents.values():
        assert values["rows"] >= 16 * 3
        assert 0 <= values["reward/role"] <= 1


def test_the_frozen_policy_did_not_change(run: Finished) -> None:
    policies = run.summary["policies"]
    assert policies["fixed"] == {**policies["fixed"], "weight_change": 0.0, "frozen": True}
    assert policies["shared"]["weight_change"] > 0
    assert "policy/fixed/grad_norm" not in run.lines("train/success")[0]


def test_the_run_stores_where_each_name_came_from(run: Finished) -> None:
    stored = json.loads((run.folder / "plugins.json").read_text())
    relay = next(plugin for plugin in stored if plugin["distribution"] == "relay-plugin")
    assert relay["version"] == "0.1"
    assert "relay" in json.dumps(relay)


def test_sample_episodes_show_the_joint_move(run: Finished) -> None:
    path = sorted(Path(run.folder / "episodes").glob("*.jsonl"))[-1]
    header, first = map(json.loads, path.read_text().splitlines()[:2])
    assert [turn["agent"] for turn in first["turns"] if turn["slot"] == "0"] == ["left", "right", "listener"]
    assert header["workflow"]["distribution"] == "relay-plugin"


def test_a_workflow_that_raises_stops_the_run_with_its_name_and_task(tmp_path: Path) -> None:
    broken = PLUGIN.replace("await team.call(len, heard.text)", "raise ValueError('the relay is broken')")
    done = train_with(broken, tmp_path, tmp_path / "runs" / "broken")
    assert done.code == 2, done.output
    told = next(line for line in done.output.splitlines() if line.startswith("marl-verl:"))
    assert "80 of 80 attempts failed" in told
    assert "AllSayIt" in told
    assert "the relay is broken" in told
