"""MAGRPO in real steps of its CPU recipe's team: joint trees, groups and returns."""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean
from typing import Any

import pytest

from tests.e2e.tour_files import Stage, Tour

pytestmark = pytest.mark.e2e

STEPS, TASKS, K = 2, 8, 4


@pytest.fixture(scope="module")
def stage(tour: Tour) -> Stage:
    return tour.stage("magrpo")


@pytest.fixture(scope="module")
def found(stage: Stage) -> dict[str, dict[str, Any]]:
    """Key -> row of the second step, with what `explain` prints for it."""
    return stage.found(1)


def test_every_task_is_a_joint_tree_of_two_turns(stage: Stage, found: dict[str, dict[str, Any]]) -> None:
    assert [line["train/failed_episodes"] for line in stage.lines] == [0] * STEPS
    tasks = defaultdict(list)
    for row in found.values():
        tasks[row["uid"]].append(row)
    assert len(tasks) == TASKS
    for of_task in tasks.values():
        nodes = {row["node"]: row["parent"] for row in of_task}
        roots, leaves = ({name for name in nodes if name.count(".") == depth} for depth in (0, 1))
        assert roots == {str(j) for j in range(K)}
        assert leaves == {f"{i}.{j}" for i in range(K) for j in range(K)}
        assert len(of_task) == 2 * len(nodes)  # both agents are in every joint action


def test_agents_of_a_joint_action_have_one_reward_return_and_advantage(found: dict[str, dict[str, Any]]) -> None:
    nodes = defaultdict(list)
    for row in found.values():
        nodes[row["uid"], row["node"]].append(row)
    for node in nodes.values():
        assert {row["agent"] for row in node} == {"left", "right"}
        for what in ("reward", "return", "advantage"):
            assert len({row[what] for row in node}) == 1
        assert {row["reward"] for row in node} <= {0.0, 0.1, 0.4, 1.0}


def test_a_turn_is_worth_its_reward_and_what_its_branches_earn(found: dict[str, dict[str, Any]]) -> None:
    below = defaultdict(list)
    for row in found.values():
        below[row["uid"], row["parent"], row["agent"]].append(row["return"])
    for row in found.values():
        children = below.get((row["uid"], row["node"], row["agent"]), [])
        assert len(children) == (K if row["parent"] is None else 0)
        assert row["return"] == pytest.approx(row["reward"] + (fmean(children) if children else 0.0))


def test_rows_are_compared_with_their_siblings_without_a_std(found: dict[str, dict[str, Any]]) -> None:
    assert any(row["advantage"] for row in found.values())
    for row in found.values():
        siblings = [found[key] for key in row["members"]]
        assert len(siblings) == K
        assert {(each["uid"], each["parent"], each["agent"]) for each in siblings} == {
            (row["uid"], row["parent"], row["agent"])
        }
        assert len({each["obs"] for each in siblings}) == 1  # they started from one state
        assert row["scale"] == 1.0
        assert row["advantage"] == pytest.approx(row["return"] - fmean(each["return"] for each in siblings))


def test_the_second_turn_is_shown_the_first(found: dict[str, dict[str, Any]]) -> None:
    """Branches whose first joint actions differ go on from different observations."""
    seen = defaultdict(set)
    for row in found.values():
        if row["agent"] == "left":
            seen[row["uid"], row["turn"]].add(row["obs"])
    assert all(len(observations) == 1 for (_, turn), observations in seen.items() if turn == 0)
    assert any(len(observations) > 1 for (_, turn), observations in seen.items() if turn == 1)


def test_reinforce_is_its_loss(stage: Stage) -> None:
    assert stage.loss_modes == {"left": "gpg", "right": "gpg"}
    for line in stage.lines:
        assert all(line[f"policy/{name}/grad_norm"] > 0 for name in ("lead", "follow"))
        assert "policy/lead/ppo_kl" not in line  # `reinforce`, which has no ratio
        assert "policy/follow/ppo_kl" in line


def test_its_metric_is_there_and_sums_up(stage: Stage) -> None:
    assert len(stage.lines) == STEPS
    for line in stage.lines:
        assert line["magrpo/turn_0/groups"] == 2 * TASKS
        assert line["magrpo/turn_1/groups"] == 2 * TASKS * K
        later = line["magrpo/turn_0/return"] - line["magrpo/turn_0/reward"]
        assert later == pytest.approx(line["magrpo/turn_1/return"])
        assert line["magrpo/turn_1/return"] == pytest.approx(line["magrpo/turn_1/reward"])
