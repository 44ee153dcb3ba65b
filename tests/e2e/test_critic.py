"""MAPPO on the real stack, in the run of the topology tests."""

import gzip
import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from marl_verl_testing.real import command

from tests.e2e.conftest import Finished, WithPlugin

pytestmark = pytest.mark.e2e


def check_learning(run: Finished, critics: Sequence[str], steps: Sequence[int]) -> None:
    """Every critic moves from 0 towards what came of the turns, with weights that change."""
    for name in critics:
        lines = run.lines(f"critic/{name}/vf_loss")
        assert [line["step"] for line in lines] == list(steps)
        assert lines[0][f"critic/{name}/value"] == 0.0  # a new head
        missed = [abs(line[f"critic/{name}/target"] - line[f"critic/{name}/value"]) for line in lines]
        assert missed[-1] < 0.7 * missed[0]
        for line in lines:
            assert line[f"critic/{name}/explained_variance"] <= 1.0
            assert line[f"critic/{name}/grad_norm"] > 0
        assert changed(run.folder, "critics", name) > 1e-4


def changed(run: Path, kind: str, name: str) -> float:
    """How far the weights moved from the first checkpoint to the second, relative to their size."""
    before, after = (weights(run, step, kind, name) for step in (3, 6))
    assert before.keys() == after.keys()
    assert "score.weight" in before
    moved = sum(float((after[key] - before[key]).pow(2).sum()) for key in before)
    return math.sqrt(moved / sum(float(before[key].pow(2).sum()) for key in before))


def weights(folder: Path, step: int, kind: str, name: str) -> dict[str, torch.Tensor]:
    file = folder / "checkpoints" / f"step_{step}" / kind / name / "model_world_size_1_rank_0.pt"
    state = torch.load(file, weights_only=False)
    return {key: value.to_local() if hasattr(value, "to_local") else value for key, value in state.items()}


def stored(folder: Path, step: int) -> Any:
    with gzip.open(folder / "rows" / f"step_{step:05d}.json.gz", "rt") as file:
        return json.load(file)


def check_rows(run: Finished, step: int, learning: Sequence[str], variables: dict[str, str]) -> list[float]:
    """Every row of the agents that learn has its value, and gives the same advantage again. The value targets."""
    document, targets = stored(run.folder, step), []
    records = json.loads(command("explain", str(run.folder), "--step", str(step), "--json", variables=variables))
    assert [record["advantage"] for record in records] == document["advantage"]
    turns = Counter((row["uid"], row["session"], row["agent"]) for row in document["rows"])
    for record, row in zip(records, document["rows"], strict=True):
        steps = {each["name"]: each["value"] for each in record["transforms"]}
        assert isinstance(row.get("value"), float) == (row["agent"] in learning)
        if row["agent"] in learning:
            assert steps["value"] == row["value"]
            targets.append(steps["value target"])
            if turns[row["uid"], row["session"], row["agent"]] == 1:  # then the return is its reward
                assert steps["value target"] == pytest.approx(record["reward"])
    return targets


def test_mappo_has_one_critic_for_all(five: WithPlugin) -> None:
    check_learning(five, ["team"], range(2, 7))
    shapes = {tuple(value.shape) for value in weights(five.folder, 6, "critics", "team").values()}
    assert (1, 32) in shapes  # the head of its own model


def test_mappo_values_the_turns_of_all_policies_that_learn(five: WithPlugin) -> None:
    """Also the second turns of an agent, and no turn of the frozen policy."""
    line = five.lines("critic/team/target")[-1]
    targets = check_rows(five, line["step"], ["left", "right", "tuned", "foreign"], five.variables)
    assert line["critic/team/target"] == pytest.approx(sum(targets) / len(targets))
    assert len({row.get("value") for row in stored(five.folder, 6)["rows"]}) > 10


def test_nothing_stays_in_transfer_queue(five: WithPlugin) -> None:
    lines = [json.loads(line) for line in (five.folder / "queue.jsonl").read_text().splitlines()]
    assert [step for step, _ in lines] == [2, 3, 4, 5, 6]
    for step, held in lines:
        assert list(held) == ["train"]
        assert {name for name in held["train"] if not name.startswith("pad")} == {f"s{step}"}
