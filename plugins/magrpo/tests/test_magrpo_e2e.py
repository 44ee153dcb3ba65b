"""MAGRPO on the real stack: what a real step's joint trees, groups and returns are."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from marl_verl.testing.real import Finished, explain, rows, train

pytestmark = pytest.mark.e2e

RECIPE = Path(__file__).parents[3] / "recipes" / "magrpo" / "magrpo_cpu.yaml"
STEPS, TASKS, K = 4, 6, 4
SHORT = (
    f"trainer.total_training_steps={STEPS}",
    f"trainer.test_freq={STEPS}",
    f"trainer.save_freq={STEPS}",
    f"data.train_batch_size={TASKS}",
    f"actor_rollout_ref.actor.ppo_mini_batch_size={TASKS}",
    "marl.task.train_size=64",
    "marl.task.test_size=20",
    "marl.policies.left.tiny.steps=200",
    "marl.policies.right.tiny.steps=200",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    done = train(RECIPE, tmp_path_factory.mktemp("runs") / "magrpo", *SHORT)
    assert done.code == 0, done.output
    return done


@pytest.fixture(scope="module")
def found(run: Finished) -> dict[str, dict[str, Any]]:
    """Key -> row of the second step, with what `explain` says of it."""
    stored = {f"{row['uid']}_{row['session']}_{row['index']}": row for row in rows(run.folder, 2)}
    printed = {record["key"]: record for record in explain(run.folder, 2) if not record["padding"]}
    assert stored.keys() == printed.keys()
    return {key: {**stored[key], **printed[key]} for key in stored}


def test_every_task_is_a_joint_tree_of_two_turns(run: Finished, found: dict[str, dict[str, Any]]) -> None:
    assert [line["train/failed_episodes"] for line in run.lines("train/success")] == [0] * STEPS
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


def test_both_policies_learn_by_reinforce(run: Finished) -> None:
    for policy in run.summary["policies"].values():
        assert policy["weight_change"] > 0
    for line in run.lines("train/success"):
        for name in ("left", "right"):
            assert f"policy/{name}/grad_norm" in line
            assert f"policy/{name}/ppo_kl" not in line  # no ratio


def test_its_metric_is_there_and_sums_up(run: Finished) -> None:
    lines = run.lines("magrpo/turn_0/return")
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    for line in lines:
        assert line["magrpo/turn_0/groups"] == 2 * TASKS
        assert line["magrpo/turn_1/groups"] == 2 * TASKS * K
        later = line["magrpo/turn_0/return"] - line["magrpo/turn_0/reward"]
        assert later == pytest.approx(line["magrpo/turn_1/return"])
        assert line["magrpo/turn_1/return"] == pytest.approx(line["magrpo/turn_1/reward"])
