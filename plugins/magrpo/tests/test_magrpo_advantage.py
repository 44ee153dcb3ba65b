"""MAGRPO's returns and baselines over a joint tree, against the paper's recursion."""

import itertools

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


def crossed(width: int, agents: int, rewards: list[float], below: dict[int, list[float]]) -> Rows:
    """One crossed joint node with width^agents joint actions, some with a crossed node of their own below.

    Args:
        rewards: of each joint action, in the order of itertools.product.
        below: joint action -> rewards of the joint actions below it.
    """
    rows: Rows = []
    index = itertools.count()
    names = ["coder", "tester", "planner"][:agents]

    def add(parent: str | None, prefix: str, turn: int, values: list[float]) -> None:
        joint = list(itertools.product(range(width), repeat=agents))
        for a, agent in enumerate(names):
            for own in range(width):
                mine = [j for j, chosen in enumerate(joint) if chosen[a] == own]
                new = row("q", 0, next(index), turn, agent, team=sum(values[j] for j in mine))
                rows.append({**new, "parent": parent, "node": "+".join(f"{prefix}{j}" for j in mine)})

    add(None, "a", 0, rewards)
    for number, values in below.items():
        add(f"a{number}", f"b{number}.", 1, values)
    return rows


def test_magrpo_crossed_sums_over_the_joint_actions_that_hold_a_completion() -> None:
    first, second = [1.0, 0.0, 2.0, 4.0], {1: [1.0, 3.0, 0.0, 0.0], 2: [8.0, 0.0, 4.0, 0.0]}
    rows = crossed(2, 2, first, second)
    method = algorithm("magrpo", returns="tree_mean", gamma=0.5, joint_mode="cross", group=["uid", "parent", "agent"])
    result = compute(method, rows)
    joint = [r + 0.5 * np.mean(second.get(j, [0.0])) for j, r in enumerate(first)]  # R of each joint action
    coder, tester = [joint[0] + joint[1], joint[2] + joint[3]], [joint[0] + joint[2], joint[1] + joint[3]]
    np.testing.assert_allclose(result.ret[:4], [*coder, *tester])
    np.testing.assert_allclose(result.advantage[:2], np.array(coder) - np.mean(coder))
    np.testing.assert_allclose(result.ret[4:8], [4.0, 0.0, 1.0, 3.0])  # below a1: leaves
    assert result.members(4).tolist() == [4, 5]
    with pytest.raises(MarlError, match="set joint_mode to 'cross'"):
        compute(algorithm("magrpo", returns="tree_mean", group="siblings"), rows)


def test_agents_of_one_joint_turn_with_different_rewards_are_refused() -> None:
    rows = [row("q", 0, 0, 0, "coder", team=1.0), row("q", 0, 1, 0, "tester", team=0.5)]
    magrpo = algorithm("magrpo", returns="path_sum", group="turn")
    with pytest.raises(MarlError, match=r"'q_0_0' and 'q_0_1' are one joint turn and have 1 and 0.5"):
        advantage(magrpo, rows)
