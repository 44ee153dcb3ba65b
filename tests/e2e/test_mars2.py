"""The CPU recipe, shortened, through the real stack: two families, one tree a task, buffers of their own."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from marl_verl.testing.real import explain, rows
from tests.e2e.conftest import Finished

pytestmark = pytest.mark.e2e

STEPS, TASKS, NODES = 6, 16, 8
BOTH = ("shifter", "flipper")


@pytest.fixture(scope="module")
def trees(searched: Finished) -> list[list[dict[str, Any]]]:
    """The rows of every tree of the run, in order of their nodes."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for step in range(1, STEPS + 1):
        for row in rows(searched.folder, step):
            if not row["padding"]:
                found[row["uid"]].append(row)
    return [sorted(tree, key=lambda row: row["index"]) for tree in found.values()]


def test_every_task_is_one_tree_of_eight_nodes(trees: list[list[dict[str, Any]]]) -> None:
    assert len(trees) == STEPS * TASKS
    for tree in trees:
        assert [row["node"] for row in tree] == [str(number) for number in range(NODES)]
        assert {row["session"] for row in tree} == {0}
        assert all(row["parent"] is None or int(row["parent"]) < int(row["node"]) for row in tree)


def test_both_agents_work_on_one_tree_and_refine_each_other(trees: list[list[dict[str, Any]]]) -> None:
    assert sum({row["agent"] for row in tree} == set(BOTH) for tree in trees) > len(trees) / 2
    refined: Counter[tuple[str, str]] = Counter()
    for tree in trees:
        for row in tree:
            if row["parent"] is not None:
                refined[tree[int(row["parent"])]["agent"], row["agent"]] += 1
    assert refined["shifter", "flipper"]
    assert refined["flipper", "shifter"]


def test_a_whole_tree_is_one_group_and_returns_are_shaped_by_parent_and_siblings(searched: Finished) -> None:
    stored = {f"{row['uid']}_{row['session']}_{row['index']}": row for row in rows(searched.folder, 1)}
    printed = explain(searched.folder, 1)
    assert len(printed) == TASKS * NODES
    children: dict[tuple[str, str | None], list[str]] = defaultdict(list)
    for key, row in stored.items():
        children[row["uid"], row["parent"]].append(key)
    fired = 0
    for record in printed:
        row = stored[record["key"]]
        assert record["group"] == {"uid": row["uid"]}
        assert record["members"] == [f"{row['uid']}_0_{node}" for node in range(NODES)]
        own, others = (
            row["rewards"]["team"],
            [key for key in children[row["uid"], row["parent"]] if key != record["key"]],
        )
        around = [stored[key]["rewards"]["team"] for key in others]
        above = None if row["parent"] is None else stored[f"{row['uid']}_0_{row['parent']}"]["rewards"]["team"]
        means = [mean for mean in (above, sum(around) / len(around) if around else None) if mean is not None]
        shaped = own + 0.5 * (own - sum(means) / len(means)) if means else own  # lam 0.5: the plain mean of the two
        assert record["return"] == pytest.approx(shaped)
        assert [step["name"] for step in record["transforms"]][-1] == "returns: shaped"
        fired += shaped != own
    assert fired
    by_tree: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in printed:
        by_tree[record["group"]["uid"]].append(record)
    for tree in by_tree.values():
        assert sum(record["advantage"] for record in tree) == pytest.approx(0, abs=1e-6)


def test_each_policy_learns_from_its_own_nodes_only(searched: Finished, trees: list[list[dict[str, Any]]]) -> None:
    for policy in BOTH:  # test_asynchronous.py counts the rows that each has learnt from
        assert all((row["agent"] == policy) == (row["policy"] == policy) for tree in trees for row in tree)
        assert any(line[f"policy/{policy}/grad_norm"] > 0 for line in searched.lines(f"policy/{policy}/grad_norm"))
    policies = searched.summary["policies"]
    assert policies["shifter"]["parameters"] != policies["flipper"]["parameters"]


def test_each_policy_has_its_own_loss(searched: Finished) -> None:
    config = yaml.safe_load((searched.folder / "config.yaml").read_text(encoding="utf-8"))
    losses = {name: config["policies"][name]["actor_rollout_ref"]["actor"]["policy_loss"]["loss_mode"] for name in BOTH}
    assert losses == {"shifter": "vanilla", "flipper": "gspo"}


def test_the_three_levels_of_diversity_are_there(searched: Finished) -> None:
    for line in searched.lines("train/success"):
        assert 0 < line["diversity/semantic"] <= 1
        assert 1 < line["diversity/algorithms"] <= NODES
        assert line["diversity/algorithms_share"] == pytest.approx(line["diversity/algorithms"] / NODES)
        assert 0 <= line["diversity/style_moves"] <= 1
        assert 0 < line["diversity/style_openings"] <= 1
        assert 0 < line["refinement/share"] < 1
        assert 0 < line["refinement/cross"] < 1


def test_refinements_were_shown_the_problem_the_attempt_and_its_feedback(searched: Finished) -> None:
    seen = [text for text in _texts(searched.folder / "journals") if " results " in text]
    assert seen
    for text in seen:
        words = text.split()
        assert (words[0], words[7], words[11]) == ("tests", "attempt", "results")
        assert set(words[12:]) <= {"pass", "fail", "unseen"}


def test_held_out_tasks_are_searched_by_public_score(searched: Finished) -> None:
    first, last = searched.lines("validation/success_sampled")
    assert (first["step"], last["step"]) == (0, STEPS)
    assert searched.summary["eval_tasks"] == 12
    for line in (first, last):  # the chosen node's path is a task's only episode
        assert line["validation/success_any"] == line["validation/success_sampled"]


def _texts(folder: Path) -> list[str]:
    """What users' messages say in the journals of a run."""
    found: list[str] = []

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if value.get("role") == "user":
                found.append(value["content"])
            for each in value.values():
                walk(each)
        elif isinstance(value, list):
            for each in value:
                walk(each)

    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            walk(json.loads(line))
    return found
