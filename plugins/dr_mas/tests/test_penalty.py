"""Dr. MAS: the penalty, weights, and the advantages of its baselines on the same rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marl_verl_testing import check_algorithm
from marl_verl_testing.rows import Rows, algorithm, episodes, row

from marl_verl import MarlError
from marl_verl.algo.advantage import AdvantageResult, RowTable
from marl_verl.algo.algorithms import Algorithm

MIX = "marl_verl_dr_mas.algorithm:PenaltyMix"
PENALTY: dict[str, Any] = {
    "rewards": MIX,
    "weights": {"team": 0.1, "role": 5.0},
    "penalty": 0.1,
}


def compute(method: Algorithm, rows: Rows) -> AdvantageResult:
    return method.compute(RowTable.from_rows(rows))


def advantage(method: Algorithm, rows: Rows) -> np.ndarray:
    return compute(method, rows).advantage


def guesses(team: list[float], verdicts: list[float]) -> Rows:
    """Two rows a session: the solver's, whose reward is the team's, and the verifier's."""
    rows = []
    for session, (won, verdict) in enumerate(zip(team, verdicts, strict=True)):
        rows.append(row("q", session, 0, 0, "solver", team=won))
        rows.append(row("q", session, 1, 0, "verifier", team=won, role=verdict))
    return rows


def test_an_invalid_action_costs_its_penalty_in_dr_mas_and_nothing_elsewhere() -> None:
    rows = [row("q", s, 0, 0, "a", team=1.0) for s in range(2)]
    rows[1]["invalid"] = True
    assert compute(algorithm("dr-mas", penalty=0.25), rows).reward.tolist() == [1.0, 0.75]
    assert advantage(algorithm("dr-mas"), rows)[0] > 0.5
    assert not advantage(algorithm("grpo"), rows).any()
    assert advantage(algorithm("grpo", rewards=MIX), rows)[0] > 0.5  # its baselines take it too


def test_weights_are_of_components() -> None:
    rows = guesses([1.0, 0.0], [1.0, -1.0])
    rows[3]["invalid"] = True
    assert compute(algorithm("dr-mas", **PENALTY), rows).reward == pytest.approx([0.1, 5.1, 0.0, -5.1])
    plain = compute(algorithm("dr-mas", penalty=0.0), rows)
    assert plain.reward.tolist() == [1.0, 2.0, 0.0, -1.0]  # without weights all components count alike


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"penalty": -0.1}, "penalty' must be a number >= 0, got -0.1"),
        ({"weights": {}}, "'weights' is empty"),
        ({"weights": {"team": "much"}}, "'weights.team' must be a number, got 'much'"),
        ({"penality": 0.1}, "unknown key 'options.penality'"),
    ],
)
def test_invalid_penalty_options_raise(options: dict[str, Any], message: str) -> None:
    with pytest.raises(MarlError) as error:
        algorithm("dr-mas", **options)
    assert message in str(error.value)


def test_a_weight_of_an_unknown_component_raises() -> None:
    with pytest.raises(MarlError, match="unknown reward component 'rol': did you mean 'role'"):
        compute(algorithm("dr-mas", weights={"rol": 1.0}), guesses([1.0, 0.0], [1.0, -1.0]))


@given(rows=episodes())
@settings(deadline=None, max_examples=25)
def test_it_keeps_what_every_algorithm_promises(rows: Rows) -> None:
    check_algorithm(algorithm("dr-mas", penalty=0.5), rows)


@given(
    scale=st.sampled_from([0.01, 1.0, 50.0]),
    shift=st.sampled_from([-5.0, 0.0, 3.0]),
    verdicts=st.lists(st.sampled_from([-1.0, 1.0]), min_size=4, max_size=4),
)
@settings(deadline=None)
def test_the_other_agents_rewards_do_not_matter_to_dr_mas_only(
    scale: float, shift: float, verdicts: list[float]
) -> None:
    team = [1.0, 0.0, 0.0, 1.0]
    plain = guesses(team, [0.0] * 4)
    changed = guesses(team, [scale * verdict + shift for verdict in verdicts])
    solver = slice(0, None, 2)
    own = advantage(algorithm("dr-mas"), changed)[solver]
    assert own == pytest.approx(advantage(algorithm("dr-mas"), plain)[solver])
    assert own == pytest.approx([0.866, -0.866, -0.866, 0.866], abs=1e-3)


def test_a_global_mean_and_std_teach_the_solver_nothing_where_verdicts_are_wrong() -> None:
    rows = guesses([1.0, 0.0, 0.0, 1.0], [-1.0] * 4)
    grpo = advantage(algorithm("grpo", **PENALTY), rows)[::2]
    assert (grpo > 0.9).all()  # every action has a positive advantage
    assert np.ptp(grpo) < 0.05  # and right from wrong differs by next to nothing
    own = advantage(algorithm("dr-mas", **PENALTY), rows)[::2]
    assert np.ptp(own) > 1.7
    assert own.sum() == pytest.approx(0.0)


def test_the_authors_baseline_gives_all_rows_of_an_episode_one_advantage() -> None:
    rows = guesses([1.0, 0.0, 0.0, 1.0], [1.0, 1.0, -1.0, -1.0])
    whole = advantage(algorithm("grpo-trajectory-mean", **PENALTY), rows)
    assert whole[::2] == pytest.approx(whole[1::2])
    assert whole[2] > 0 > whole[6]  # a wrong guess is praised for its verdict, a right one blamed


def test_own_mean_and_a_common_std_leaves_the_solver_a_tiny_signal() -> None:
    rows = guesses([1.0, 0.0, 0.0, 1.0], [1.0, 1.0, -1.0, -1.0])
    half = advantage(algorithm("dr-mas", **PENALTY, scale_group="task"), rows)
    assert half[::2].sum() == pytest.approx(0.0)
    assert np.ptp(half[::2]) < 0.05
    assert np.ptp(half[1::2]) > 1.5
