"""The metrics match the paper's formula and the second moments of the advantages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marl_verl_dr_mas.algorithm import DR_MAS
from marl_verl_dr_mas.amplification import Amplification, Factor, SecondMoment, amplification

from marl_verl.algo.advantage import TASK, Advantage, RowTable
from marl_verl.algo.algorithms import Algorithm

GRPO = Algorithm(advantage=Advantage(group=TASK, singleton="raw"))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(-4, 4)), min_size=1, max_size=30))
@settings(deadline=None)
def test_amplification_is_dr_mas_formula(samples: list[tuple[int, int, int]]) -> None:
    task, agent, value = (np.array(column) for column in zip(*samples, strict=True))
    reward = value.astype(float)
    found = amplification(reward, task, agent)
    spread: dict[int, list[float]] = {}
    shift: dict[int, list[float]] = {}
    for t in np.unique(task):
        everyone = reward[task == t]
        if everyone.std() == 0:
            continue
        weighted = 0.0
        for k in np.unique(agent[task == t]):
            mine = reward[(task == t) & (agent == k)]
            spread.setdefault(int(k), []).append(mine.var() / everyone.var())
            shift.setdefault(int(k), []).append((mine.mean() - everyone.mean()) ** 2 / everyone.var())
            weighted += (spread[int(k)][-1] + shift[int(k)][-1]) * len(mine)
        assert weighted / len(everyone) == pytest.approx(1.0)
    assert found.keys() == spread.keys()
    for k, factor in found.items():
        assert factor.spread == pytest.approx(np.mean(spread[k]))
        assert factor.shift == pytest.approx(np.mean(shift[k]))
        assert factor.total == pytest.approx(np.mean(spread[k]) + np.mean(shift[k]))


def test_a_task_without_spread_amplifies_nothing() -> None:
    reward, task = np.array([0.1, 0.1, 0.1, 1.0, 0.0, 0.0]), np.array([0, 0, 0, 1, 1, 1])
    found = amplification(reward, task, np.array([0, 0, 1, 0, 0, 1]))
    assert {k: factor.total for k, factor in found.items()} == pytest.approx({0: 1.25, 1: 0.5})
    assert amplification(reward[:3], task[:3], np.array([0, 0, 1])) == {}


def table(solver: list[float], verifier: list[float], uid: str = "q") -> list[dict[str, object]]:
    """A row of each agent a session."""
    return [
        {
            **{"uid": uid, "session": session, "index": index, "turn": 0, "agent": agent, "length": 3},
            "rewards": {"team": reward},
        }
        for session, both in enumerate(zip(solver, verifier, strict=True))
        for index, (agent, reward) in enumerate(zip(("solver", "verifier"), both, strict=True))
    ]


def test_agents_with_rewards_far_apart_are_amplified() -> None:
    # all the spread is the verifier's, and both are as far from the common mean
    rows = RowTable.from_rows(table([0.1, 0.0, 0.1, 0.0], [5.0, -5.0, 5.0, -5.0]))
    found = Amplification().of_rows(rows, DR_MAS.compute(rows))
    assert found["agent/verifier/amplification"] == pytest.approx(2.0, abs=0.01)
    assert found["agent/solver/amplification"] == pytest.approx(0.0, abs=0.01)


def test_a_factor_of_one_can_be_all_shift() -> None:
    # verdicts all wrong: both agents have 1, and of the solver's it is noise
    rows = RowTable.from_rows(table([0.1, 0.0, 0.1, 0.0], [-5.0, -5.0, -5.0, -5.0]))
    found = Amplification().of_rows(rows, DR_MAS.compute(rows))
    assert found["agent/solver/amplification"] == pytest.approx(1.0, abs=0.01)
    assert found["agent/solver/amplification/shift"] == pytest.approx(1.0, abs=0.01)
    assert found["agent/solver/amplification/spread"] < 0.001
    assert found["agent/verifier/amplification/spread"] == 0.0


def test_it_is_the_second_moment_of_global_advantages_and_not_of_dr_mas() -> None:
    rows = RowTable.from_rows(table([0.1, 0.0, 0.1, 0.0], [5.0, -5.0, 5.0, 5.0]))
    amplified = Amplification().of_rows(rows, GRPO.compute(rows))
    everywhere = SecondMoment().of_rows(rows, GRPO.compute(rows))
    own = SecondMoment().of_rows(rows, DR_MAS.compute(rows))
    for agent in ("solver", "verifier"):
        name = f"agent/{agent}/second_moment"
        assert everywhere[name] == pytest.approx(amplified[f"agent/{agent}/amplification"] * 7 / 8, rel=1e-4)
        assert own[name] == pytest.approx(3 / 4, rel=1e-3)


def test_padding_and_a_task_without_spread_count_nowhere() -> None:
    rows = table([0.1, 0.0], [5.0, -5.0])
    idle = table([1.0, 1.0], [1.0, 1.0], uid="idle")
    fill = {**rows[0], "index": 9, "padding": True, "rewards": {"team": 99.0}}
    wanted, given = RowTable.from_rows(rows), RowTable.from_rows([*rows, *idle, fill])
    for metric in (Amplification(), SecondMoment()):
        assert metric.of_rows(given, DR_MAS.compute(given)) == pytest.approx(
            metric.of_rows(wanted, DR_MAS.compute(wanted))
        )
    nothing = RowTable.from_rows(idle)
    assert Amplification().of_rows(nothing, DR_MAS.compute(nothing)) == {}
    assert SecondMoment().of_rows(nothing, DR_MAS.compute(nothing)) == {}


def test_a_factor_is_the_sum_of_its_terms() -> None:
    assert Factor(spread=0.25, shift=1.5).total == 1.75
