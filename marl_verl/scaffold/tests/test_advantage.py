"""The parts of the advantage against numbers made by hand, and what every algorithm has to keep to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from marl_verl.advantage import RowTable
from marl_verl.testing import check_algorithm

from my_method.algorithm import ALGORITHM
from my_method.baseline import Median
from my_method.mix import TeamAndTurn
from my_method.returns import Sooner
from my_method.scale import Distance

VALUE, GROUP = np.array([1.0, 5.0, 0.0, 2.0, 9.0]), np.array([0, 1, 0, 0, 1])


def row(uid: str, session: int, index: int, team: float, credit: float) -> dict[str, Any]:
    """The caller's and the writer's acts in turn."""
    return {
        "uid": uid,
        "session": session,
        "index": index,
        "turn": index // 2,
        "agent": ("caller", "writer")[index % 2],
        "rewards": {"team": team, "role": team / 2, "credit": credit},
        "length": 3,
    }


# sessions of one or two rounds
ROWS = [
    row(uid, session, index, float(session % 2), float((session + index) % 3 - 1))
    for uid, sessions in (("p", 5), ("q", 2))
    for session in range(sessions)
    for index in range(4 if session % 2 else 2)
]


def test_the_mix_adds_what_the_turn_did() -> None:
    table = RowTable.from_rows([row("q", 0, 0, team=1.0, credit=-1.0), row("q", 0, 1, team=1.0, credit=1.0)])
    assert TeamAndTurn(w_turn=0.5).compute(table).tolist() == [0.75, 1.75]


def test_a_later_round_is_worth_less() -> None:
    table = RowTable.from_rows([row("q", 0, index, team=1.0, credit=0.0) for index in range(4)])
    assert Sooner(gamma=0.5).compute(table, np.ones(4)).tolist() == [1.0, 1.0, 0.5, 0.5]


def test_the_median_of_each_group() -> None:
    assert Median().compute(VALUE, GROUP).tolist() == [1.0, 7.0, 1.0, 1.0, 7.0]


def test_the_mean_distance_from_the_mean() -> None:
    assert Distance().compute(VALUE, GROUP).tolist() == pytest.approx([2 / 3, 2.0])


def test_the_algorithm_keeps_its_promises() -> None:
    result = check_algorithm(ALGORITHM, ROWS)
    assert result.group_by == ("uid", "agent", "turn")
    assert result.advantage.any()


def test_one_act_by_itself_has_nothing_to_be_compared_with() -> None:
    rows = [one for one in ROWS if one["uid"] == "q"]  # one of its two sessions has a second round
    assert [check_algorithm(ALGORITHM, rows).advantage[i] for i, one in enumerate(rows) if one["turn"] == 1] == [0, 0]
