"""A workflow, a role reward and an advantage in a distribution outside the repository train the quick start.

The core is not changed, and the parts of the distribution are listed wherever parts are listed.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.conftest import long, train
from tests.e2e.tour import OWN
from tests.e2e.tour_files import PLUGIN, Stage, Tour, install

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module", params=["own plugin", "own plugin, again"])
def stage(tour: Tour, request: pytest.FixtureRequest) -> Stage:
    """Its steps at the start of the run, which is its recipe's, and those after all other teams."""
    return tour.stage(request.param)


def test_no_episode_fails(stage: Stage) -> None:
    assert [line["step"] for line in stage.lines] == stage.steps
    assert [line["train/failed_episodes"] for line in stage.lines] == [0] * len(stage.steps)


def test_it_trains(tour: Tour) -> None:
    stages = [tour.stage(name) for name in ("own plugin", "own plugin, again")]
    lines = [line for stage in stages for line in stage.lines]
    for name in ("lead", "follow"):
        assert any(line[f"policy/{name}/grad_norm"] > 0 for line in lines)
        assert tour.run.summary["policies"][name]["weight_change"] > 0
    counts = [sum(row["policy"] == "follow" for row in step) for stage in stages for step in stage.rows]
    assert any(count % 4 for count in counts)  # of four updates: some rows are padding


def test_its_reward_is_in_the_metrics(stage: Stage) -> None:
    for line in stage.lines:
        assert 0 <= line["agent/asker/reward/role"] <= 1
        assert "agent/holder/reward/role" not in line


def test_plugins_lists_it(tour: Tour) -> None:
    records = {each["plugin"]: each for each in json.loads(tour.command("plugins", "--json"))}
    assert records["around"]["distribution"] == "around-plugin"
    names = {kind: list(each) for kind, each in records["around"]["names"].items()}
    assert names == {
        "tasks": ["all-teams", "relay"],
        "workflows": ["around", "twice"],
        "rewards": ["one-word", "said-it"],
        "advantages": ["against-median"],
    }


def test_explain_shows_its_advantage(stage: Stage) -> None:
    records = stage.explained()
    assert {tuple(record["group"]) for record in records} == {("uid", "agent")}
    groups: dict[tuple[str, ...], list[float]] = {}
    for record in records:
        groups.setdefault(tuple(record["group"].values()), []).append(record["advantage"])
    for advantages in groups.values():  # of a median: as many above as below
        assert sum(value > 1e-9 for value in advantages) <= len(advantages) / 2
        assert sum(value < -1e-9 for value in advantages) <= len(advantages) / 2


def test_the_run_stores_where_each_name_came_from(tour: Tour) -> None:
    stored = json.loads((tour.run.folder / "plugins.json").read_text())
    mine = next(plugin for plugin in stored if plugin["distribution"] == "around-plugin")
    assert mine["version"] == "0.1"
    assert "against-median" in json.dumps(mine)


def test_sample_episodes_show_the_joint_move(stage: Stage) -> None:
    header, first = stage.episodes[:2]
    acts = Counter(turn["agent"] for turn in first["turns"])
    assert acts["asker"] == acts["holder"] + 1
    assert header["workflow"]["distribution"] == "around-plugin"


@long
def test_a_workflow_that_raises_stops_the_run_with_its_name_and_task(tmp_path: Path) -> None:
    broken = PLUGIN.replace("await team.call(len, last.text)", "raise ValueError('the relay is broken')")
    options = (*OWN, "marl.task.test_size=20", "trainer.total_training_steps=3")
    done = train(tmp_path / "runs" / "broken", *options, **install(tmp_path / "site", broken))
    assert done.code == 2, done.output
    printed = next(line for line in done.output.splitlines() if line.startswith("marl-verl:"))
    assert "40 of 40 attempts failed" in printed
    assert "Twice" in printed
    assert "the relay is broken" in printed
