"""Roles on different scales: a constant reward of a role or turn changes all advantages of GRPO and none of AT-GRPO."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from marl_verl_testing.rows import Rows, algorithm, episodes, keep

from marl_verl.algo.advantage import FloatArray, RowTable

OFFSETS = st.dictionaries(
    st.tuples(st.integers(0, 2), st.sampled_from(["planner", "solver", "verifier"])), st.integers(-8, 8)
)


def advantages(name: str, rows: Rows) -> FloatArray:
    return (
        algorithm(name, rewards="marl_verl_at_grpo.algorithm:AlphaMix", alpha=1.0)
        .compute(RowTable.from_rows(rows))
        .advantage
    )


@given(rows=episodes().map(lambda rows: keep(rows, team="team", role="role")), offsets=OFFSETS)
@settings(deadline=None, max_examples=20)
def test_a_reward_that_a_role_has_in_any_case_changes_nothing(rows: Rows, offsets: dict[tuple[int, str], int]) -> None:
    def moved(row: dict[str, object]) -> float:
        return row["rewards"]["role"] + offsets.get((row["turn"], row["agent"]), 0)  # type: ignore[index]

    more = [{**row, "rewards": {**row["rewards"], "role": moved(row)}} for row in rows]
    np.testing.assert_allclose(advantages("at-grpo", more), advantages("at-grpo", rows), atol=1e-6)


def test_turn_blind_groups_mistake_an_offset_for_a_good_action() -> None:
    def rows(extra: float) -> Rows:
        rewards = {"planner": (0.0, 1.0), "executor": (1.0, 0.0)}
        return [
            {
                **{"uid": "q", "session": session, "index": turn, "turn": 0, "agent": agent, "length": 1},
                "rewards": {"team": 0.0, "role": earned[session] + (extra if agent == "planner" else 0.0)},
            }
            for session in range(2)
            for turn, (agent, earned) in enumerate(rewards.items())
        ]

    plain, moved = advantages("grpo", rows(0.0)), advantages("grpo", rows(2.0))
    assert np.sign(plain).tolist() == [-1, 1, 1, -1]
    assert np.sign(moved).tolist() == [1, -1, 1, -1]  # whoever plans did well, whoever moves did badly
    np.testing.assert_allclose(advantages("at-grpo", rows(2.0)), advantages("at-grpo", rows(0.0)), atol=1e-6)
