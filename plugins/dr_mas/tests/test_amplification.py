"""The metric is the paper's formula."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marl_verl_dr_mas.algorithm import DR_MAS
from marl_verl_dr_mas.amplification import Amplification, amplification

from marl_verl.advantage import RowTable


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(-4, 4)), min_size=1, max_size=30))
@settings(deadline=None)
def test_amplification_is_dr_mas_formula(samples: list[tuple[int, int, int]]) -> None:
    task, agent, value = (np.array(column) for column in zip(*samples, strict=True))
    reward = value.astype(float)
    found = amplification(reward, task, agent)
    factors: dict[int, list[float]] = {}
    for t in np.unique(task):
        everyone = reward[task == t]
        if everyone.std() == 0:
            continue
        weighted = 0.0
        for k in np.unique(agent[task == t]):
            mine = reward[(task == t) & (agent == k)]
            factor = (mine.var() + (mine.mean() - everyone.mean()) ** 2) / everyone.var()
            factors.setdefault(int(k), []).append(factor)
            weighted += factor * len(mine)
        assert weighted / len(everyone) == pytest.approx(1.0)
    assert found == pytest.approx({k: np.mean(f) for k, f in factors.items()})


def test_a_task_without_spread_amplifies_nothing() -> None:
    reward, task = np.array([0.1, 0.1, 0.1, 1.0, 0.0, 0.0]), np.array([0, 0, 0, 1, 1, 1])
    assert amplification(reward, task, np.array([0, 0, 1, 0, 0, 1])) == pytest.approx({0: 1.25, 1: 0.5})


def test_agents_with_rewards_far_apart_are_amplified() -> None:
    rows = [
        {
            **{"uid": "q", "session": session, "index": index, "turn": 0, "agent": agent, "length": 3},
            "rewards": {"team": reward},
        }
        for session in range(4)
        for index, (agent, reward) in enumerate(
            [("solver", float(session % 2)), ("solver", float(session % 2)), ("verifier", 10.0 + 0.01 * session)]
        )
    ]
    table = RowTable.from_rows(rows)
    found = Amplification().of_rows(table, DR_MAS.compute(table))
    # two solver rows to one of the verifier: the common mean is nearer to the solver's
    assert found["agent/solver/amplification"] == pytest.approx(0.51, abs=0.02)
    assert found["agent/verifier/amplification"] == pytest.approx(1.98, abs=0.04)
    own = RowTable.from_rows([row for row in rows if row["agent"] == "solver"])
    assert Amplification().of_rows(own, DR_MAS.compute(own)) == {"agent/solver/amplification": pytest.approx(1.0)}
