"""Dr. MAS: the penalty of invalid actions, and its metrics."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marl_verl_dr_mas.algorithm import DR_MAS
from marl_verl_dr_mas.amplification import Amplification, amplification
from marl_verl_testing.rows import Rows, algorithm, row

from marl_verl.algo.advantage import TASK, Advantage, RowTable
from marl_verl.algo.algorithms import Algorithm
from tests.batches import advantage, compute

MIX = "marl_verl_dr_mas.algorithm:PenaltyMix"


def test_an_invalid_action_costs_its_penalty_in_dr_mas_and_nothing_elsewhere() -> None:
    rows = [row("q", s, 0, 0, "a", team=1.0) for s in range(2)]
    rows[1]["invalid"] = True
    assert compute(algorithm("dr-mas", penalty=0.25), rows).reward.tolist() == [1.0, 0.75]
    assert advantage(algorithm("dr-mas"), rows)[0] > 0.5
    assert not advantage(algorithm("grpo"), rows).any()
    assert advantage(algorithm("grpo", rewards=MIX), rows)[0] > 0.5  # its baselines take it too


def test_weights_make_rewards_of_very_different_size() -> None:
    rows = [row("q", s, 0, 0, "solver", team=float(s)) for s in range(2)]
    rows += [row("q", s, 1, 0, "verifier", team=float(s), role=2.0 * s - 1) for s in range(2)]
    result = compute(algorithm("dr-mas", weights={"team": 0.1, "role": 5.0}), rows)
    assert result.reward.tolist() == [0.0, 0.1, -5.0, 5.1]
    # by itself each agent is normalised to the same size
    assert result.advantage == pytest.approx([-0.707, 0.707, -0.707, 0.707], abs=1e-3)


# The metrics match the paper's formula and the second moments of the advantages


GRPO = Algorithm(advantage=Advantage(group=TASK, singleton="raw"))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(-4, 4)), min_size=1, max_size=30))
@settings(deadline=None)
def test_amplification_is_dr_mas_formula(samples: list[tuple[int, int, int]]) -> None:
    task, agent, value = (np.array(column) for column in zip(*samples, strict=True))
    reward = value.astype(float)
    found = amplification(reward, 2 * reward, task, agent)
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
    for k, terms in found.items():
        assert terms[:2] == pytest.approx((np.mean(spread[k]), np.mean(shift[k])))


def table(solver: list[float], verifier: list[float], uid: str = "q") -> Rows:
    """A row of each agent a session."""
    sides = enumerate((("solver", solver), ("verifier", verifier)))
    return [row(uid, s, i, 0, agent, team=reward) for i, (agent, rewards) in sides for s, reward in enumerate(rewards)]


def test_it_is_the_second_moment_of_global_advantages_and_not_of_dr_mas() -> None:
    rows = RowTable.from_rows(table([0.1, 0.0, 0.1, 0.0], [5.0, -5.0, 5.0, 5.0]))
    everywhere, own = (Amplification().of_rows(rows, method.compute(rows)) for method in (GRPO, DR_MAS))
    for agent in ("solver", "verifier"):
        name = f"agent/{agent}/second_moment"
        assert everywhere[name] == pytest.approx(everywhere[f"agent/{agent}/amplification"] * 7 / 8, rel=1e-4)
        assert own[name] == pytest.approx(3 / 4, rel=1e-3)


def test_a_task_without_spread_counts_nowhere() -> None:
    rows = table([0.1, 0.0], [5.0, -5.0])
    idle = table([1.0, 1.0], [1.0, 1.0], uid="idle")
    tables = (RowTable.from_rows(rows), RowTable.from_rows([*rows, *idle]))
    both = [Amplification().of_rows(rows_of, DR_MAS.compute(rows_of)) for rows_of in tables]
    assert both[0] == pytest.approx(both[1])
    nothing = RowTable.from_rows(idle)
    assert Amplification().of_rows(nothing, DR_MAS.compute(nothing)) == {}
