"""Sampling and learning at the same time in a real run: every row is accounted for. `test_signals.py` continues one.

The run is that of MARS2's CPU recipe, shortened: a Qwen3 and a Llama, one tree of 8 nodes a task, each policy with its
own nodes, buffer and loss.
"""

import gzip
import itertools
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from marl_verl import explain
from marl_verl.config.stored import read_config
from tests.e2e.conftest import Finished, left_running
from tests.weights import change

pytestmark = pytest.mark.e2e

POLICIES, TASKS, STEPS, NODES = ("shifter", "flipper"), 16, 4, 8


def _rows(done: Finished) -> dict[int, list[dict[str, Any]]]:
    """Step -> the rows that its tasks gave."""
    files = sorted((done.folder / "rows").iterdir())
    documents = [json.loads(gzip.decompress(path.read_bytes())) for path in files]
    return {document["step"]: document["rows"] for document in documents}


def test_every_row_is_learnt_from_dropped_or_waits_in_a_buffer(searched: Finished) -> None:
    lines, rows = searched.lines("train/success"), _rows(searched)
    assert [line["step"] for line in lines] == list(rows)
    assert [len(step) for step in rows.values()] == [TASKS * NODES] * len(lines)
    for policy in POLICIES:
        sampled = sum(row["policy"] == policy for step in rows.values() for row in step)
        used = {count: sum(line[f"policy/{policy}/{count}"] for line in lines) for count in ("trained_rows", "updates")}
        dropped = sum(line[f"policy/{policy}/stale_dropped"] for line in lines)
        assert used["trained_rows"] + dropped + lines[-1][f"policy/{policy}/buffer_rows"] == sampled
        assert used["trained_rows"] % 8 == 0
        assert used["trained_rows"] >= 16 * used["updates"] > 16


def test_every_task_is_played_once(searched: Finished) -> None:
    steps = [{row["uid"] for row in rows} for rows in _rows(searched).values()]
    assert {len(uids) for uids in steps} == {TASKS}
    uids = set.union(*steps)
    assert len(uids) == len(steps) * TASKS
    batches = [int(uid[1:].split("t")[0]) for uid in uids]
    # of the data: what was finished, what is under way, and what was read with it
    assert min(batches) == 1 <= max(batches) <= len(steps) + 2
    tasks = {uid: task for path in (searched.folder / "journals").iterdir() for uid, task in _episodes(path)}
    assert set(tasks) == uids
    assert len(set(tasks.values())) == len(uids)  # the data are drawn without replacement


def _episodes(path: Path) -> list[tuple[str, str]]:
    """(uid, id of the task) of every episode in a file."""
    lines = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    return [(line["uid"], line["task"]["id"]) for line in lines if "failure" not in line]


def test_versions_count_a_policys_own_updates_and_staleness_is_bounded(searched: Finished) -> None:
    lines = searched.lines("train/success")
    for policy in POLICIES:
        updates = 0
        for line in lines:
            updates += line[f"policy/{policy}/updates"]
            assert line[f"policy/{policy}/version"] == updates
            if line[f"policy/{policy}/updates"]:
                mean, most = (line[f"policy/{policy}/staleness_{what}"] for what in ("mean", "max"))
                assert 0 <= mean <= most <= 4
                assert line[f"policy/{policy}/rollout_corr/rollout_is_mean"] > 0
    assert any(line.get(f"policy/{name}/staleness_max", 0) >= 1 for line in lines for name in POLICIES)


def test_actions_of_older_weights_are_weighted(searched: Finished) -> None:
    for policy in POLICIES:
        lines = searched.lines(f"policy/{policy}/rollout_corr/rollout_is_max")
        fresh = [line for line in lines if line[f"policy/{policy}/staleness_max"] == 0]
        stale = [line for line in lines if line[f"policy/{policy}/staleness_max"] >= 1]
        # weights of the same version agree to the seventh digit, others do not: versions are what they say
        for line in fresh:
            assert line[f"policy/{policy}/rollout_corr/rollout_is_max"] == pytest.approx(1.0, abs=1e-3)
        assert max(line[f"policy/{policy}/rollout_corr/log_ppl_abs_diff"] for line in stale) > 1e-4


def test_both_policies_learned_and_nothing_is_left_running(searched: Finished) -> None:
    for policy in POLICIES:
        assert change(searched.folder, policy) > 1e-4
    assert left_running() == []


def _trees(rows: list[dict[str, Any]], uid: Callable[[Any], str]) -> list[list[dict[str, Any]]]:
    return [list(tree) for _, tree in itertools.groupby(sorted(rows, key=uid), uid)]


def test_both_agents_work_on_one_tree_and_refine_each_other(searched: Finished) -> None:
    refined: Counter[tuple[str, str]] = Counter()
    for tree in (tree for rows in _rows(searched).values() for tree in _trees(rows, lambda row: row["uid"])):
        tree.sort(key=lambda row: row["index"])
        assert [row["node"] for row in tree] == [str(number) for number in range(NODES)]
        assert all(row["agent"] == row["policy"] for row in tree)
        refined.update((tree[int(row["parent"])]["agent"], row["agent"]) for row in tree if row["parent"] is not None)
    assert refined["shifter", "flipper"]
    assert refined["flipper", "shifter"]


def test_a_whole_tree_is_one_group(searched: Finished) -> None:
    records = explain(searched.folder, step=1)
    assert len(records) == TASKS * NODES
    for tree in _trees(records, lambda record: record["group"]["uid"]):
        assert len(tree) == len(tree[0]["members"]) == NODES
        assert sum(record["advantage"] for record in tree) == pytest.approx(0, abs=1e-6)
    assert any(record["return"] != record["reward"] for record in records)  # shaped by parent and siblings


def test_each_policy_has_its_own_loss_and_the_team_its_metrics(searched: Finished) -> None:
    policies = read_config(searched.folder / "config.yaml").policies
    assert [policies[name].actor_rollout_ref.actor.policy_loss.loss_mode for name in POLICIES] == ["vanilla", "gspo"]
    for line in searched.lines("train/success"):
        assert 0 < line["diversity/semantic"] <= 1
        assert 0 < line["refinement/cross"] < 1


def test_held_out_tasks_are_searched_by_public_score(searched: Finished) -> None:
    for line, step in zip(searched.lines("validation/success_sampled"), (0, STEPS), strict=True):
        assert line["step"] == step  # the chosen node's path is a task's only episode
        assert line["validation/success_any"] == line["validation/success_sampled"]
