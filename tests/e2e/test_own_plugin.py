"""A workflow, a role reward and an advantage in one file outside the repository train the quick start.

The core is not changed, and the parts of the file are listed wherever parts are listed.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from marl_verl.testing.real import command, explain
from tests.e2e.conftest import Finished, long, train

pytestmark = pytest.mark.e2e

PLUGIN = '''
from dataclasses import dataclass

import numpy as np

from marl_verl import Workflow, hookimpl
from marl_verl.advantage import AdvantageResult, Estimator, group_ids
from marl_verl.tasks.inventory import asker_sees, holder_sees

class Twice(Workflow):
    """The asker guesses while the holder writes, and answers once it has read."""
    async def run(self, task, team):
        both = {"holder": holder_sees(task), "asker": asker_sees(task, "none")}
        said = await team.act(both)
        if task.data["digits"][0] < "3":    # longer episodes: the batch does not divide, and rows are padded
            said = await team.act(both)
        words = said["holder"].text.split()
        whole = len(words) == 4 and all(word in "0123456789" for word in words)
        last = await team["asker"].act(asker_sees(task, " ".join(words) if whole else "none"))
        await team.call(len, last.text)
        return last.text

def one_word(task, turn, episode):
    return float(len(turn.action.text.split()) == 1)

@dataclass(frozen=True)
class AgainstMedian(Estimator):
    """A = r - median of the rows of the task and agent."""
    def compute(self, table, reward):
        group = group_ids(table, ("uid", "agent"))
        median = np.array([np.median(reward[group == g]) for g in range(group.max() + 1)])[group]
        return AdvantageResult.of(ret=reward, reward=reward, baseline=median, scale=np.ones(len(table)), group=group,
                             sample=np.arange(len(table)), group_by=("uid", "agent"))

@hookimpl
def marl_register(registry):
    registry.workflow("twice", Twice)
    registry.reward("one-word", one_word)
    registry.advantage("against-median", AgainstMedian)
'''
OPTIONS = (
    "marl.workflow.name=twice",
    "marl.agents.asker.reward=one-word",
    "marl.algorithm.name=grpo",
    "marl.algorithm.options.advantage=against-median",
    "marl.sampler.options.episodes=3",
    "marl.task.test_size=20",
    "data.train_batch_size=16",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "trainer.total_training_steps=3",
    "trainer.test_freq=3",
    "trainer.save_freq=3",
)


def install(plugin: str, site: Path) -> dict[str, str]:
    """Install a plugin in `site` only; the environment that has it."""
    (site / "twice_plugin.py").write_text(plugin)
    info = site / "twice_plugin-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: twice-plugin\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[marl_verl]\ntwice = twice_plugin\n")
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return install(PLUGIN, tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def run(site: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Finished:
    done = train(tmp_path_factory.mktemp("runs") / "twice", *OPTIONS, **site)
    assert done.code == 0, done.output
    return done


def test_it_trains(run: Finished) -> None:
    assert [line["step"] for line in run.lines("train/success")] == [1, 2, 3]
    assert run.lines("train/success")[0]["train/failed_episodes"] == 0
    assert all(policy["weight_change"] > 0 for policy in run.summary["policies"].values())


def test_its_reward_is_in_the_metrics(run: Finished) -> None:
    for line in run.lines("train/success"):
        assert 0 <= line["agent/asker/reward/role"] <= 1
        assert "agent/holder/reward/role" not in line


def test_plugins_lists_it(site: dict[str, str]) -> None:
    records = {each["plugin"]: each for each in json.loads(command("plugins", "--json", variables=site))}
    assert records["twice"]["distribution"] == "twice-plugin"
    names = {kind: list(each) for kind, each in records["twice"]["names"].items()}
    assert names == {"workflows": ["twice"], "rewards": ["one-word"], "advantages": ["against-median"]}


def test_explain_shows_its_advantage(run: Finished, site: dict[str, str]) -> None:
    records = explain(run.folder, 3, site)
    assert {tuple(record["group"]) for record in records} == {("uid", "agent")}
    groups: dict[tuple[str, ...], list[float]] = {}
    for record in records:
        groups.setdefault(tuple(record["group"].values()), []).append(record["advantage"])
    for advantages in groups.values():  # of a median: as many above as below
        assert sum(value > 1e-9 for value in advantages) <= len(advantages) / 2
        assert sum(value < -1e-9 for value in advantages) <= len(advantages) / 2


def test_the_run_stores_where_each_name_came_from(run: Finished) -> None:
    stored = json.loads((run.folder / "plugins.json").read_text())
    mine = next(plugin for plugin in stored if plugin["distribution"] == "twice-plugin")
    assert mine["version"] == "0.1"
    assert "against-median" in json.dumps(mine)


def test_sample_episodes_show_the_joint_move(run: Finished) -> None:
    path = sorted(Path(run.folder / "episodes").glob("*.jsonl"))[-1]
    header, first = map(json.loads, path.read_text().splitlines()[:2])
    acts = Counter(turn["agent"] for turn in first["turns"])
    assert acts["asker"] == acts["holder"] + 1
    assert header["workflow"]["distribution"] == "twice-plugin"


@long
def test_a_workflow_that_raises_stops_the_run_with_its_name_and_task(tmp_path: Path) -> None:
    broken = PLUGIN.replace("await team.call(len, last.text)", "raise ValueError('the relay is broken')")
    (tmp_path / "site").mkdir()
    done = train(tmp_path / "runs" / "broken", *OPTIONS, **install(broken, tmp_path / "site"))
    assert done.code == 2, done.output
    printed = next(line for line in done.output.splitlines() if line.startswith("marl-verl:"))
    assert "40 of 40 attempts failed" in printed
    assert "Twice" in printed
    assert "the relay is broken" in printed
