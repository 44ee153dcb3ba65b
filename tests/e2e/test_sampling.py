"""Every sampler and every credit scheme in a real training step, on a team with a joint move and calls."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import Any

import pytest

from tests.e2e.tour import BATCH, ROUTE, STAGES
from tests.e2e.tour_files import Row, Tour

pytestmark = pytest.mark.e2e


def of_tasks(tour: Tour, stage: str) -> dict[str, list[Row]]:
    """Task -> the rows that the step stored."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in tour.stage(stage).rows[-1]:
        found[row["uid"]].append(row)
    return found


def stored(tour: Tour, stage: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in tour.stage(stage).journals.read_text().splitlines()]


@pytest.mark.parametrize("stage", STAGES)
def test_a_step_trains_and_is_explained(tour: Tour, stage: str) -> None:
    (line,) = tour.stage(stage).lines
    assert line["train/failed_episodes"] == 0
    assert line["train/attempts"] > 0
    for policy in ("lead", "follow"):
        assert line[f"policy/{policy}/grad_norm"] > 0, line
    records = tour.stage(stage).explained()
    assert {record["key"].split("_")[0] for record in records} == set(of_tasks(tour, stage))
    assert len(of_tasks(tour, stage)) == BATCH
    assert any(record["advantage"] for record in records)
    shown = tour.command("explain", "--run", str(tour.run.folder), "--step", str(line["step"]))
    assert shown.splitlines()[1].startswith(STAGES[stage]["name"])


@pytest.mark.parametrize("stage", STAGES)
def test_every_stored_episode_is_replayed_without_a_model(tour: Tour, stage: str) -> None:
    episodes = [line["id"] for line in stored(tour, stage) if "journal" in line]
    assert len(episodes) >= BATCH
    for episode in (episodes[0], episodes[-1]):
        assert "digit" in tour.command("replay", str(tour.stage(stage).journals), "--episode", episode)


def siblings(rows: list[dict[str, Any]]) -> dict[Any, list[dict[str, Any]]]:
    found: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        found[row["parent"], row["agent"], row["turn"]].append(row)
    return found


def test_the_greedy_tree_has_all_candidates_of_every_act(tour: Tour) -> None:
    for rows in of_tasks(tour, "greedy-tree").values():
        assert len(rows) == 4 * 3  # planner, left, right, planner; three candidates each
        for group in siblings(rows).values():
            assert len(group) == 3
            assert len({row["obs"] for row in group}) == 1
    records = tour.stage("greedy-tree").explained()
    assert {len(record["members"]) for record in records} == {3}
    assert list(records[0]["group"]) == ["uid", "turn", "agent", "slot"]


def test_the_joint_tree_branches_at_every_joint_move(tour: Tour) -> None:
    for rows in of_tasks(tour, "joint-tree").values():
        assert Counter(row["agent"] for row in rows) == {"planner": 2 + 8, "left": 4, "right": 4}
    for record in tour.stage("joint-tree").explained():
        assert len(record["members"]) == 2
        assert "parent" in record["group"]


def test_the_crossed_tree_joins_every_completion_with_every_other(tour: Tour) -> None:
    for rows in of_tasks(tour, "joint-tree, crossed").values():
        assert Counter(row["agent"] for row in rows) == {"planner": 2 + 16, "left": 4, "right": 4}
        for row in rows:
            assert row["node"].count("+") == (row["agent"] != "planner")


@pytest.mark.parametrize("stage", ["tree-search", "tree-search, stack"])
def test_the_search_makes_exactly_its_budget_of_nodes(tour: Tour, stage: str) -> None:
    agents: set[str] = set()
    for rows in of_tasks(tour, stage).values():
        assert [row["node"] for row in rows] == [str(node) for node in range(6)]
        agents |= {row["agent"] for row in rows}
    assert "planner" in agents
    assert len({len(record["members"]) for record in tour.stage(stage).explained()}) == 1  # the whole tree is one group


def test_the_search_let_either_worker_take_the_acts_of_the_other(tour: Tour) -> None:
    taken = [turn for line in stored(tour, "tree-search") for turn in line.get("turns", ()) if turn["called"]]
    assert {turn["agent"] for turn in taken} in ({"left"}, {"right"}, {"left", "right"})
    assert all(turn["called"] != turn["agent"] for turn in taken)


def test_the_best_of_all_sessions_is_the_episode_and_every_session_trains(tour: Tour) -> None:
    for rows in of_tasks(tour, "best-of").values():
        assert len(rows) == 3 * 4
        assert {row["session"] for row in rows} == {0, 1, 2}
    assert sum("journal" in line for line in stored(tour, "best-of")) == BATCH


@pytest.mark.parametrize("mode", ["", ", full", ", rescore"])
def test_workers_have_their_marginal_credit(tour: Tour, mode: str) -> None:
    stage = f"counterfactual{mode}"
    for rows in of_tasks(tour, stage).values():
        for row in rows:
            assert ("mc" in row["rewards"]) == (row["agent"] != "planner")
            assert ("tool" in row["rewards"]) == (row["agent"] != "planner")
    tokens = tour.stage(stage).lines[0].get("train/extra_tokens/credit", 0.0)
    assert tokens > 0 if mode != ", rescore" else tokens == 0


def test_shapley_values_are_on_every_turn_and_cost_tokens(tour: Tour) -> None:
    for rows in of_tasks(tour, "shapley").values():
        assert all("credit" in row["rewards"] for row in rows)
    assert tour.stage("shapley").lines[0]["train/extra_tokens/credit"] > 0


def test_the_validation_chose_the_best_of_three(tour: Tour) -> None:
    assert tour.run.summary["eval_tasks"] == 20
    assert tour.stage("own plugin").marl["validation"]["sampler"] == "best-of"
    assert 0 <= tour.run.summary["success_after_sampled"] <= 1


@pytest.mark.parametrize("stage", [name for name, _, _ in ROUTE if name not in STAGES])
def test_a_team_is_validated_on_its_own_tasks(tour: Tour, stage: str) -> None:
    its = tour.stage(stage)
    assert its.validation["validation/failed_episodes"] == 0
    header, *episodes = its.episodes
    assert header["workflow"]["name"] == its.marl["workflow"]["name"]
    assert {turn["agent"] for episode in episodes for turn in episode["turns"]} == set(its.marl["agents"])
