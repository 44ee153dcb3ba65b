"""The CPU recipe, shortened, through the real stack: two families, one tree a task, buffers of their own."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from marl_verl.testing.real import Finished, explain, rows, train

pytestmark = pytest.mark.e2e

RECIPE = Path(__file__).parents[3] / "recipes" / "mars2" / "mars2_cpu.yaml"
STEPS, TASKS, NODES = 4, 16, 8
BOTH = ("shifter", "flipper")
SHORT = (
    f"trainer.total_training_steps={STEPS}",
    f"trainer.test_freq={STEPS}",
    f"trainer.save_freq={STEPS}",
    f"data.train_batch_size={TASKS}",
    f"actor_rollout_ref.actor.ppo_mini_batch_size={TASKS}",
    "marl.schedule.fill=16",  # the paper's
    "marl.schedule.batch=8",
    "marl.policies.flipper.loss=gspo-tis",  # MARS2+'s, the other keeps MARS2's
    "marl.task.test_size=12",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    done = train(RECIPE, tmp_path_factory.mktemp("mars2") / "run", *SHORT)
    assert done.code == 0, done.output
    return done


@pytest.fixture(scope="module")
def trees(run: Finished) -> list[list[dict[str, Any]]]:
    """The rows of every tree of the run, in order of their nodes."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for step in range(1, STEPS + 1):
        for row in rows(run.folder, step):
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


def test_a_whole_tree_is_one_group_and_returns_are_shaped_by_parent_and_siblings(run: Finished) -> None:
    stored = {f"{row['uid']}_{row['session']}_{row['index']}": row for row in rows(run.folder, 1)}
    printed = explain(run.folder, 1)
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


def test_each_policy_learns_from_its_own_nodes_only(run: Finished, trees: list[list[dict[str, Any]]]) -> None:
    lines = run.lines("train/success")
    assert len(lines) == STEPS
    for policy in BOTH:
        own = sum(row["policy"] == policy for tree in trees for row in tree)
        trained = sum(line[f"policy/{policy}/trained_rows"] for line in lines)
        dropped = sum(line[f"policy/{policy}/stale_dropped"] for line in lines)
        assert own == trained + dropped + lines[-1][f"policy/{policy}/buffer_rows"]
        assert trained >= 16
        assert trained % 8 == 0
        assert all(row["agent"] == policy for tree in trees for row in tree if row["policy"] == policy)
        assert any(line.get(f"policy/{policy}/grad_norm", 0) > 0 for line in lines)
        assert run.summary["policies"][policy]["weight_change"] > 0
    assert run.summary["policies"]["shifter"]["parameters"] != run.summary["policies"]["flipper"]["parameters"]


def test_each_policy_has_its_own_loss(run: Finished) -> None:
    config = yaml.safe_load((run.folder / "config.yaml").read_text(encoding="utf-8"))
    losses = {name: config["policies"][name]["actor_rollout_ref"]["actor"]["policy_loss"]["loss_mode"] for name in BOTH}
    assert losses == {"shifter": "vanilla", "flipper": "gspo"}


def test_staleness_and_buffers_are_reported(run: Finished) -> None:
    lines = run.lines("train/success")
    for policy in BOTH:
        assert lines[-1][f"policy/{policy}/version"] >= 1
        learnt = [line for line in lines if line[f"policy/{policy}/updates"]]
        assert learnt
        for line in learnt:
            assert 0 <= line[f"policy/{policy}/staleness_mean"] <= line[f"policy/{policy}/staleness_max"] <= 4
            assert line[f"policy/{policy}/rollout_corr/rollout_is_mean"] > 0
    assert all(math.isfinite(line["train/buffer_rows"]) for line in lines)


def test_the_three_levels_of_diversity_are_there(run: Finished) -> None:
    for line in run.lines("train/success"):
        assert 0 < line["diversity/semantic"] <= 1
        assert 1 < line["diversity/algorithms"] <= NODES
        assert line["diversity/algorithms_share"] == pytest.approx(line["diversity/algorithms"] / NODES)
        assert 0 <= line["diversity/style_moves"] <= 1
        assert 0 < line["diversity/style_openings"] <= 1
        assert 0 < line["refinement/share"] < 1
        assert 0 < line["refinement/cross"] < 1


def test_refinements_were_shown_the_problem_the_attempt_and_its_feedback(run: Finished) -> None:
    seen = [text for text in _texts(run.folder / "journals") if " results " in text]
    assert seen
    for text in seen:
        words = text.split()
        assert (words[0], words[7], words[11]) == ("tests", "attempt", "results")
        assert set(words[12:]) <= {"pass", "fail", "unseen"}


def test_held_out_tasks_are_searched_by_public_score(run: Finished) -> None:
    first, last = run.lines("validation/success_sampled")
    assert (first["step"], last["step"]) == (0, STEPS)
    assert run.summary["eval_tasks"] == 12
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
