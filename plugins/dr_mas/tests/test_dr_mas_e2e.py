"""Dr. MAS on the real stack: what a real step's groups, rewards and metrics are."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from marl_verl.testing.real import Finished, explain, rows, train

pytestmark = pytest.mark.e2e

RECIPE = Path(__file__).parents[3] / "recipes" / "dr_mas" / "dr_mas_cpu.yaml"
STEPS, TASKS, SESSIONS = 4, 8, 8
SHORT = (
    f"trainer.total_training_steps={STEPS}",
    f"trainer.test_freq={STEPS}",
    f"trainer.save_freq={STEPS}",
    f"data.train_batch_size={TASKS}",
    f"actor_rollout_ref.actor.ppo_mini_batch_size={TASKS}",
    "marl.task.train_size=64",
    "marl.task.test_size=20",
    "marl.workflow.options.unparseable=reject",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    done = train(RECIPE, tmp_path_factory.mktemp("runs") / "dr-mas", *SHORT)
    assert done.code == 0, done.output
    return done


@pytest.fixture(scope="module")
def found(run: Finished) -> dict[str, dict[str, Any]]:
    """Key -> row of the second step, with what `explain` says of it."""
    stored = {f"{row['uid']}_{row['session']}_{row['index']}": row for row in rows(run.folder, 2)}
    printed = {record["key"]: record for record in explain(run.folder, 2) if not record["padding"]}
    assert stored.keys() == printed.keys()
    return {key: {**stored[key], **printed[key]} for key in stored}


def test_agents_act_unequally_often(run: Finished, found: dict[str, dict[str, Any]]) -> None:
    assert [line["train/failed_episodes"] for line in run.lines("train/success")] == [0] * STEPS
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


def test_its_metrics_say_what_a_global_std_would_do(run: Finished, found: dict[str, dict[str, Any]]) -> None:
    for line in run.lines("train/success"):
        for agent in ("solver", "verifier"):
            name = f"agent/{agent}/amplification"
            assert line[name] == pytest.approx(line[f"{name}/spread"] + line[f"{name}/shift"])
            assert line[f"agent/{agent}/second_moment"] < 1
        assert line["agent/verifier/amplification"] > 1
        assert line["agent/solver/amplification/spread"] < 0.01
    second = run.lines("train/success")[1]
    factors = []
    for uid in {row["uid"] for row in found.values()}:
        rewards = [row["reward"] for row in found.values() if row["uid"] == uid]
        mine = [row["reward"] for row in found.values() if row["uid"] == uid and row["agent"] == "verifier"]
        variance = fmean((each - fmean(rewards)) ** 2 for each in rewards)
        factors.append(fmean((each - fmean(rewards)) ** 2 for each in mine) / variance)
    assert second["agent/verifier/amplification"] == pytest.approx(fmean(factors))


def test_both_policies_learn(run: Finished) -> None:
    assert set(run.summary["policies"]) == {"solver", "verifier"}
    for policy in run.summary["policies"].values():
        assert policy["weight_change"] > 0
    for line in run.lines("train/success"):
        assert all(line[f"policy/{name}/grad_norm"] > 0 for name in ("solver", "verifier"))
