"""Dr. MAS in real steps of its CPU recipe's team: groups, rewards and metrics."""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean, stdev
from typing import Any

import pytest

from tests.e2e.tour_files import Stage, Tour

pytestmark = pytest.mark.e2e

STEPS, TASKS, SESSIONS = 2, 8, 8


@pytest.fixture(scope="module")
def stage(tour: Tour) -> Stage:
    return tour.stage("dr-mas")


@pytest.fixture(scope="module")
def found(stage: Stage) -> dict[str, dict[str, Any]]:
    """Key -> row of the second step, with what `explain` prints for it."""
    return stage.found(1)


def test_agents_act_unequally_often(stage: Stage, found: dict[str, dict[str, Any]]) -> None:
    assert [line["train/failed_episodes"] for line in stage.lines] == [0] * STEPS
    sessions = defaultdict(list)
    for row in sorted(found.values(), key=lambda row: row["index"]):
        sessions[row["uid"], row["session"]].append(row["agent"])
    assert len(sessions) == TASKS * SESSIONS
    shapes = {tuple(agents) for agents in sessions.values()}
    assert shapes == {("solver", "verifier"), ("solver", "verifier", "solver")}


def test_rewards_are_of_very_different_size(found: dict[str, dict[str, Any]]) -> None:
    invalid = 0
    for row in found.values():
        earned = row["rewards"]
        assert set(earned) == {"team", "role"} if row["agent"] == "verifier" else {"team"}
        invalid += row["invalid"]
        wanted = 0.1 * earned["team"] + 5.0 * earned.get("role", 0.0) - 0.1 * row["invalid"]
        assert row["reward"] == pytest.approx(wanted)
        assert abs(row["reward"]) > 4.5 if row["agent"] == "verifier" else abs(row["reward"]) <= 0.1
    assert invalid  # the careless verifier is unsure: marked by the workflow, and it costs


def test_a_row_is_compared_with_its_own_agents_rows_of_the_task(found: dict[str, dict[str, Any]]) -> None:
    sizes = set()
    for row in found.values():
        assert row["group"] == {"uid": row["uid"], "agent": row["agent"]}
        mine = [each for each in found.values() if (each["uid"], each["agent"]) == (row["uid"], row["agent"])]
        assert set(row["members"]) == {each["key"] for each in mine}
        sizes.add((row["agent"], len(mine) > SESSIONS))
        returns = [each["return"] for each in mine]
        assert row["baseline"] == pytest.approx(fmean(returns))
        assert row["scale"] == pytest.approx(stdev(returns) + 1e-6)
    assert ("solver", True) in sizes  # its second guesses are rows as well
    assert ("verifier", True) not in sizes


def test_both_agents_advantages_are_of_one_size(found: dict[str, dict[str, Any]]) -> None:
    sizes: dict[str, list[float]] = {"solver": [], "verifier": []}
    for row in found.values():
        sizes[row["agent"]].append(abs(row["advantage"]))
    # rewards differ by a factor of fifty
    assert 0.1 < max(sizes["solver"]) < 8
    assert 0.1 < max(sizes["verifier"]) < 8


def test_its_metrics_say_what_a_global_std_would_do(stage: Stage, found: dict[str, dict[str, Any]]) -> None:
    for line in stage.lines:
        for agent in ("solver", "verifier"):
            name = f"agent/{agent}/amplification"
            assert line[name] == pytest.approx(line[f"{name}/spread"] + line[f"{name}/shift"])
            assert line[f"agent/{agent}/second_moment"] < 1
        assert line["agent/verifier/amplification"] > 1
        assert line["agent/solver/amplification/spread"] < 0.01
    second = stage.lines[1]
    factors = []
    for uid in {row["uid"] for row in found.values()}:
        rewards = [row["reward"] for row in found.values() if row["uid"] == uid]
        mine = [row["reward"] for row in found.values() if row["uid"] == uid and row["agent"] == "verifier"]
        variance = fmean((each - fmean(rewards)) ** 2 for each in rewards)
        factors.append(fmean((each - fmean(rewards)) ** 2 for each in mine) / variance)
    assert second["agent/verifier/amplification"] == pytest.approx(fmean(factors))


def test_both_policies_learn(stage: Stage) -> None:
    for line in stage.lines:
        assert all(line[f"policy/{name}/grad_norm"] > 0 for name in ("lead", "follow"))
