"""MAGRPO's returns and baselines over a joint tree, against the paper's recursion."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marl_verl_magrpo.algorithm import magrpo
from marl_verl_testing.rows import Rows, algorithm, joint_trees, row

from marl_verl import MarlError
from tests.batches import advantage, compute


@given(rows=joint_trees(), mode=st.sampled_from(["raw", "max", "rloo"]), gamma=st.sampled_from([0.5, 0.9, 1.0]))
@settings(deadline=None, max_examples=20)
def test_other_baselines_over_the_siblings(rows: Rows, mode: str, gamma: float) -> None:
    method = algorithm("magrpo", group=["uid", "parent", "agent"], gamma=gamma)
    np.testing.assert_allclose(advantage(method, rows), magrpo(rows, gamma), atol=1e-9)  # the mean
    result = compute(algorithm(method, mode=mode), rows)
    for i, mine in enumerate(result.ret):
        siblings = result.ret[result.members(i)]
        others = (siblings.sum() - mine) / max(len(siblings) - 1, 1)
        wanted = {"raw": 0.0, "max": max(siblings), "rloo": others if len(siblings) > 1 else mine}[mode]
        assert result.advantage[i] == pytest.approx(mine - wanted, abs=1e-9)


@given(rows=joint_trees())
@settings(deadline=None, max_examples=10)
def test_normalised_all_four_modes_of_magrpo_are_the_same(rows: Rows) -> None:
    mean, raw, highest, rloo = (
        advantage(algorithm("magrpo", normalize=True, mode=mode), rows) for mode in ("mean", "raw", "max", "rloo")
    )
    for other in (raw, highest, rloo):
        np.testing.assert_allclose(other, mean, rtol=1e-9, atol=1e-9)


def test_agents_of_one_joint_turn_with_different_rewards_are_refused() -> None:
    rows = [row("q", 0, 0, 0, "coder", team=1.0), row("q", 0, 1, 0, "tester", team=0.5)]
    with pytest.raises(MarlError, match=r"'q_0_0' and 'q_0_1' are one joint turn and have 1 and 0.5"):
        advantage(algorithm("magrpo", returns="path_sum", group="turn"), rows)
