"""A step of AT-GRPO, MAGRPO, Dr. MAS and SHARP on the real stack, and Ctrl-C in a step. `test_asynchronous.py` has
MARS2. Their arithmetic is tested in each distribution."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from marl_verl.testing.real import explain, rows
from tests.e2e.conftest import WithPlugin
from tests.e2e.tour import BATCH, METHODS

pytestmark = pytest.mark.e2e

COUNTS = {  # method -> sampler's number, rows of a task
    "sharp": (8, {8 * 8}),
    "at_grpo": (8, {8 * acts for acts in range(2, 9)}),
    "magrpo": (4, {2 * (4 + 4 * 4)}),
    "dr_mas": (8, set(range(8 * 2, 8 * 3 + 1))),
}


def tasks_of(tour: WithPlugin, method: str) -> dict[str, list[dict[str, Any]]]:
    """Task -> the rows that the step of a method stored."""
    tasks: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows(tour.folder, METHODS.index(method) + 1):
        if not row["padding"]:
            tasks[row["uid"]].append(row)
    return tasks


@pytest.mark.parametrize("method", METHODS)
def test_a_method_samples_and_updates(tour: WithPlugin, method: str) -> None:
    line = tour.lines("train/success")[METHODS.index(method)]
    assert line["train/failed_episodes"] == 0
    assert all(line[f"policy/{policy}/grad_norm"] > 0 for policy in ("lead", "follow")), line
    assert "policy/follow/ppo_kl" in line
    assert "policy/lead/ppo_kl" not in line  # `reinforce`, which has no ratio
    tasks = tasks_of(tour, method)
    assert len(tasks) == BATCH
    assert {len(task) for task in tasks.values()} <= COUNTS[method][1]


@pytest.mark.parametrize(
    ("method", "together"), [("at_grpo", ("agent", "turn", "slot")), ("magrpo", ("agent", "parent"))]
)
def test_siblings_of_a_tree_start_from_one_state(tour: WithPlugin, method: str, together: tuple[str, ...]) -> None:
    for task in tasks_of(tour, method).values():
        siblings = defaultdict(list)
        for row in task:
            siblings[tuple(row[column] for column in together)].append(row)
        for group in siblings.values():
            assert len(group) == COUNTS[method][0]
            assert len({row["obs"] for row in group}) == 1


def test_masked_runs_went_through_the_models(tour: WithPlugin) -> None:
    assert tour.lines("train/success")[0]["train/extra_tokens/credit"] > 0
    for row in (row for task in tasks_of(tour, "sharp").values() for row in task):
        assert ("mc" in row["rewards"]) == (row["agent"] != "planner")


def test_a_step_is_explained_as_it_was_trained(tour: WithPlugin) -> None:
    records = {record["key"]: record for record in explain(tour.folder, 1, tour.variables)}
    for task in tasks_of(tour, "sharp").values():
        for row in task:
            record = records[f"{row['uid']}_{row['session']}_{row['index']}"]
            assert record["group"] == {"uid": row["uid"], "agent": row["agent"]}
            assert len(record["members"]) == 2 * 8
    assert any(record["advantage"] for record in records.values())


def test_ctrl_c_in_a_step_leaves_nothing_running(tour: WithPlugin) -> None:
    assert tour.code == 130, tour.output
    assert "interrupted" in tour.output
    assert tour.left == []
