"""Generalised advantage estimation: against a plain loop, lam 0 and 1, the order of turns, and its derivation."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marl_verl_baselines import GAE
from marl_verl_baselines.presets import gae as reference
from marl_verl_inspect.explained import ExplainedRows
from marl_verl_magrpo.algorithm import JointAdvantage

from marl_verl.algo.advantage import RowTable
from marl_verl.algo.advantage.estimator import Rows as Kind
from marl_verl.algo.algorithms.algorithm import step_document
from marl_verl.errors import MarlError
from tests.batches import FIT, Rows, algorithm, row

UNIT = st.floats(0, 1)


def turn(session: int, index: int, agent: str, reward: float, value: float | None, **more: Any) -> dict[str, Any]:
    return {**row("q", session, index, 0, agent, team=reward), "value": value, **more}


def gae(rows: Rows, gamma: float = 1.0, lam: float = 0.95) -> np.ndarray:
    table = RowTable.from_rows(rows)
    return GAE(gamma=gamma, lam=lam).compute(table, np.array([sum(row["rewards"].values()) for row in rows]))


@given(data=st.data(), gamma=UNIT, lam=UNIT)
@settings(max_examples=50)
def test_it_is_the_loop_over_an_agents_turns(data: st.DataObject, gamma: float, lam: float) -> None:
    rows = data.draw(FIT["ippo"])
    rows = [rows[i] for i in data.draw(st.permutations(range(len(rows))))]
    np.testing.assert_allclose(gae(rows, gamma, lam), reference(rows, gamma, lam), rtol=1e-12, atol=1e-12)


def test_the_critic_learns_the_return() -> None:
    """With lam = 1 the targets are the discounted returns, for any values of the critic; they are those of the rows."""
    rows = [turn(0, i, "a", reward, value) for i, (reward, value) in enumerate([(0.0, 3.0), (0.0, -1.0), (1.0, 5.0)])]
    result = algorithm("ippo", gamma=0.5, lam=1.0).compute(RowTable.from_rows(rows[::-1]))
    assert result.target is not None
    assert result.target.tolist() == [1.0, 0.5, 0.25]
    assert algorithm("grpo").compute(RowTable.from_rows(rows)).target is None


@given(data=st.data())
@settings(max_examples=20)
def test_targets_do_not_depend_on_how_advantages_are_scaled(data: st.DataObject) -> None:
    rows = data.draw(FIT["ippo"])
    table = RowTable.from_rows([rows[i] for i in data.draw(st.permutations(range(len(rows))))])
    result = algorithm("ippo", norm_by_std=False, baseline="none").compute(table)
    scaled = algorithm("ippo", overlong={"L": 8, "C": 4}).compute(table)
    assert result.target is not None
    assert scaled.target is not None
    np.testing.assert_allclose(result.target, result.advantage + table.values, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(scaled.target, result.target)


def test_a_frozen_agent_needs_no_value() -> None:
    rows = [turn(0, 0, "a", 1.0, 0.25), turn(0, 1, "frozen", 9.0, None), turn(1, 0, "a", 0.0, 0.25)]
    result = algorithm("ippo", norm_by_std=False, baseline="none").compute(RowTable.from_rows(rows))
    assert result.advantage.tolist() == [0.75, 0.0, -0.25]
    assert result.target is not None
    assert result.target.tolist() == [1.0, 0.0, 0.0]


def test_missing_values_raise() -> None:
    with pytest.raises(MarlError, match="no row has a 'value', which returns 'gae' needs"):
        gae([turn(0, 0, "a", 1.0, None)])
    with pytest.raises(MarlError, match="row 'q_1_0' lacks 'value', which other rows of its agent have"):
        gae([turn(0, 0, "a", 1.0, 0.5), turn(1, 0, "a", 1.0, None)])


def test_what_does_not_fit_is_refused() -> None:
    advantage = algorithm("ippo").advantage
    assert advantage.incompatibility(Kind()) is None
    assert "returns 'gae' sums the turns of a session, and turns of a tree have siblings" in str(
        advantage.incompatibility(Kind(tree=True))
    )
    joint = JointAdvantage(returns=GAE())
    assert "returns 'gae' needs a critic, and advantage 'joint' trains none" in str(joint.incompatibility(Kind()))


@given(rows=FIT["mappo"])
@settings(max_examples=20)
def test_a_stored_step_gives_the_same_advantages_again(rows: Rows) -> None:
    """Through JSON, with values, to the bit."""
    method, table = algorithm("mappo", gamma=0.9), RowTable.from_rows(rows)
    result = method.compute(table)
    document = json.loads(json.dumps(step_document("mappo", method, table, result, step=3)))
    again = ExplainedRows(document)
    assert [record["advantage"] for record in again] == document["advantage"] == result.advantage.tolist()
    np.testing.assert_array_equal(again.table.values, table.values)
