"""The CPU recipe, shortened, through the real stack: candidates from one state, the best goes on, all are rows."""

from __future__ import annotations

import itertools
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marl_verl.testing.real import Finished, explain, rows, train

pytestmark = pytest.mark.e2e

RECIPE = Path(__file__).parents[3] / "recipes" / "at_grpo" / "at_grpo_cpu.yaml"
STEPS, TASKS, K, TURNS = 4, 8, 8, 4
SHORT = (
    f"trainer.total_training_steps={STEPS}",
    f"trainer.test_freq={STEPS}",
    f"trainer.save_freq={STEPS}",
    f"data.train_batch_size={TASKS}",
    f"actor_rollout_ref.actor.ppo_mini_batch_size={TASKS}",
    "marl.task.train_size=200",
    "marl.task.test_size=12",
    "marl.policies.planner.tiny.steps=100",
    "marl.policies.executor.tiny.steps=100",
)
Row = dict[str, Any]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    done = train(RECIPE, tmp_path_factory.mktemp("at-grpo") / "run", *SHORT)
    assert done.code == 0, done.output
    return done


@pytest.fixture(scope="module")
def trees(run: Finished) -> list[list[list[Row]]]:
    """The candidates of each act on the winners' path, of every tree of every step."""
    found = []
    for step in range(1, STEPS + 1):
        of_task: dict[str, dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
        for each in rows(run.folder, step):
            if not each["padding"]:
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


def test_explain_shows_the_groups_and_advantages_of_a_real_step(run: Finished) -> None:
    records = {record["key"]: record for record in explain(run.folder, STEPS) if not record["padding"]}
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


def test_both_policies_learn_and_nothing_is_sampled_in_vain(run: Finished) -> None:
    assert {name: policy["weight_change"] > 0 for name, policy in run.summary["policies"].items()} == {
        "planner": True,
        "executor": True,
    }
    lines = run.lines("train/success")
    assert len(lines) == STEPS
    for line in lines:
        assert 1 <= line["team/turns"] <= TURNS
        assert line["tree/gain/planner"] > 0
        assert line["tree/gain/executor"] > 0
        assert not [name for name in line if name.startswith("train/extra_tokens") and line[name]]  # no playing on
