"""AT-GRPO in real steps of its CPU recipe's team: candidates from one state, the best is continued, all are rows."""

from __future__ import annotations

import itertools
from collections import defaultdict

import numpy as np
import pytest

from tests.e2e.tour_files import Row, Stage, Tour

pytestmark = pytest.mark.e2e

STEPS, TASKS, K, TURNS = 2, 8, 8, 4


@pytest.fixture(scope="module")
def stage(tour: Tour) -> Stage:
    return tour.stage("at-grpo")


@pytest.fixture(scope="module")
def trees(stage: Stage) -> list[list[list[Row]]]:
    """The candidates of each act on the winners' path, of every tree of every step."""
    found = []
    for step in stage.rows:
        of_task: dict[str, dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
        for each in step:
            of_task[each["uid"]][each["index"] // K].append(each)
        assert len(of_task) == TASKS
        found += [[acts[number] for number in sorted(acts)] for acts in of_task.values()]
    return found


def mixed(each: Row) -> float:
    return float(each["rewards"]["team"] + each["rewards"]["role"])


def test_every_act_has_all_its_candidates_and_the_agents_take_turns(trees: list[list[list[Row]]]) -> None:
    for acts in trees:
        assert 2 <= len(acts) <= 2 * TURNS
        for number, candidates in enumerate(acts):
            assert [each["node"] for each in candidates] == [f"{number}-{k}" for k in range(K)]
            assert {each["agent"] for each in candidates} == {("planner", "executor")[number % 2]}
            assert {each["turn"] for each in candidates} == {number // 2}
            assert len({each["obs"] for each in candidates}) == 1  # one shared state


def test_the_best_candidate_is_the_state_of_the_next_act(trees: list[list[list[Row]]]) -> None:
    moved = 0
    for acts in trees:
        for before, after in itertools.pairwise(acts):
            best = max(before, key=lambda each: (round(mixed(each), 9), -each["index"]))
            assert {each["parent"] for each in after} == {best["node"]}
            moved += before[0]["agent"] == "executor" and after[0]["obs"] != acts[0][0]["obs"]
    assert moved


def test_candidates_of_both_agents_have_rewards_of_their_own(trees: list[list[list[Row]]]) -> None:
    for agent in ("planner", "executor"):
        acts = [act for tree in trees for act in tree if act[0]["agent"] == agent]
        assert sum(len({mixed(each) for each in act}) > 1 for act in acts) > len(acts) / 5


def test_explain_shows_the_groups_and_advantages_of_a_real_step(stage: Stage) -> None:
    records = {record["key"]: record for record in stage.explained() if not record["padding"]}
    for record in records.values():
        group = [records[key] for key in record["members"]]
        assert set(record["group"]) == {"uid", "turn", "agent", "slot"}
        assert len(group) == K
        values = {each["name"]: each["value"] for each in record["transforms"]}
        assert record["reward"] == pytest.approx(values["component: team"] + values["component: role"])
        rewards = np.array([each["reward"] for each in group])
        expected = (record["reward"] - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
        assert record["advantage"] == pytest.approx(expected, abs=1e-6)
    assert max(abs(record["advantage"]) for record in records.values()) > 0.5


def test_nothing_is_sampled_in_vain(stage: Stage) -> None:
    assert len(stage.lines) == STEPS
    for line in stage.lines:
        assert all(line[f"policy/{name}/grad_norm"] > 0 for name in ("lead", "follow"))
        assert 1 <= line["team/turns"] <= TURNS
        assert line["tree/gain/planner"] > 0
        assert line["tree/gain/executor"] > 0
        assert not [name for name in line if name.startswith("train/extra_tokens") and line[name]]  # no playing on
