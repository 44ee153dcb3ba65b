"""SHARP in real steps of its CPU recipe's team: credits of masked runs through the models, and three rewards."""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean

import pytest

from tests.e2e.tour_files import Row, Stage, Tour

pytestmark = pytest.mark.e2e

TASKS, SESSIONS = 8, 8
WORKERS = ("reader", "idler", "gossip")
ORDER = ["planner", *WORKERS, *WORKERS, "planner"]  # who acts in an episode
LONGEST = 4  # tokens of an answer


@pytest.fixture(scope="module")
def stage(tour: Tour) -> Stage:
    return tour.stage("sharp")


@pytest.fixture(scope="module")
def steps(stage: Stage) -> list[list[Row]]:
    """The rows of every step."""
    return stage.rows


def sessions(step: list[Row]) -> list[list[Row]]:
    """The rows of every session of a step, in the order of the acts."""
    found: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in step:
        found[row["uid"], row["session"]].append(row)
    return [sorted(session, key=lambda row: row["index"]) for session in found.values()]


def credit_of(session: list[Row]) -> dict[str, float]:
    """Worker -> its marginal credit."""
    return {row["agent"]: row["rewards"]["mc"] for row in session if row["agent"] != "planner"}


def test_every_task_is_eight_episodes_in_which_planner_and_workers_act(steps: list[list[Row]]) -> None:
    for step in steps:
        assert len(sessions(step)) == TASKS * SESSIONS
        for session in sessions(step):
            assert [row["agent"] for row in session] == ORDER


def test_a_credit_is_what_the_team_would_have_lost(stage: Stage, steps: list[list[Row]]) -> None:
    credits = []
    for session in (session for step in steps for session in sessions(step)):
        team = session[0]["rewards"]["team"]
        for row in session:
            assert ("mc" in row["rewards"]) == (row["agent"] != "planner")
            assert row["rewards"].get("mc", 0.0) in ({0.0, 1.0} if team else {-1.0, 0.0})
        for worker, credit in credit_of(session).items():
            assert {row["rewards"]["mc"] for row in session if row["agent"] == worker} == {credit}
        credits.append(credit_of(session))
    mean = {worker: fmean(credit[worker] for credit in credits) for worker in WORKERS}
    assert mean["reader"] > 0.05
    assert abs(mean["idler"]) < 0.05
    assert mean["gossip"] < min(0.0, mean["reader"] - 0.1)  # a mean has a standard error of 0.02


def test_a_credit_is_of_the_worker_that_was_masked(steps: list[list[Row]]) -> None:
    """The reader is useful, the gossip harmful, the idler neither, except where the planner's new answer differs."""
    won: dict[str, list[float]] = defaultdict(list)
    harmful = dict.fromkeys(WORKERS, 0)
    for session in (session for step in steps for session in sessions(step)):
        for worker, credit in credit_of(session).items():
            harmful[worker] += credit < 0
            if session[0]["rewards"]["team"]:
                won[worker].append(credit)
    useful = {worker: fmean(won[worker]) for worker in WORKERS}
    assert useful["reader"] > 0.7
    assert max(useful["idler"], useful["gossip"]) < 0.5
    assert harmful["gossip"] > 2 * harmful["reader"]


def test_masked_runs_went_through_the_model_and_are_no_rows(stage: Stage) -> None:
    for line in stage.lines:
        replays = TASKS * SESSIONS * len(WORKERS)  # each asks the planner for its answer once, at most
        assert 0 < line["train/extra_tokens/credit"] <= replays * LONGEST


def test_the_three_rewards_are_mixed_and_compared_by_agent(stage: Stage, steps: list[list[Row]]) -> None:
    session_of = {(row["uid"], row["session"]): session for session in sessions(steps[0]) for row in session}
    printed = {record["key"]: record for record in stage.explained(0)}
    assert len(printed) == TASKS * SESSIONS * len(ORDER)
    for row in steps[0]:
        record, session = (
            printed[f"{row['uid']}_{row['session']}_{row['index']}"],
            session_of[row["uid"], row["session"]],
        )
        rewards, credit = row["rewards"], credit_of(session)
        if row["agent"] == "planner":
            assert "tool" not in rewards
            share = 0.5 * sum(max(value, 0.0) for value in credit.values()) / len(WORKERS)
            wanted = 0.9 * rewards["team"] + 0.9 * share
        else:
            wanted = 0.9 * rewards["team"] + 0.9 * rewards["mc"] + 0.1 * rewards.get("tool", 0.0)
        assert record["reward"] == pytest.approx(wanted)
        assert record["group"] == {"uid": row["uid"], "agent": row["agent"]}
        assert len(record["members"]) == 2 * SESSIONS
    assert any(record["advantage"] for record in printed.values())


def test_a_call_that_failed_costs_tool_reward(steps: list[list[Row]]) -> None:
    tools = [row["rewards"].get("tool") for step in steps for row in step if row["agent"] == "reader"]
    assert {0.0, 1.0} <= set(tools)  # careless demonstrations look up everything, which is no page


def test_the_shares_of_useful_idle_and_harmful_calls_are_those_of_the_rows(
    stage: Stage, steps: list[list[Row]]
) -> None:
    for line, step in zip(stage.lines, steps, strict=True):
        credits = [credit for session in sessions(step) for credit in credit_of(session).values()]
        assert line["worker_calls/useful"] == pytest.approx(sum(credit > 0 for credit in credits) / len(credits))
        assert line["worker_calls/harmful"] == pytest.approx(sum(credit < 0 for credit in credits) / len(credits))
        shares = [line[f"worker_calls/{share}"] for share in ("useful", "idle", "harmful")]
        assert sum(shares) == pytest.approx(1.0)
        mine = [credit_of(session)["gossip"] for session in sessions(step)]
        assert line["agent/gossip/credit/harmful"] == pytest.approx(sum(credit < 0 for credit in mine) / len(mine))
        assert "agent/planner/credit/useful" not in line


def test_both_policies_learn(stage: Stage) -> None:
    for line in stage.lines:
        assert all(line[f"policy/{name}/grad_norm"] > 0 for name in ("lead", "follow"))
