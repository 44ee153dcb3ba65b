"""`check_algorithm`: every shipped algorithm passes on random rows, and each violation is reported."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from marl_verl_testing import check_algorithm

from marl_verl.algo.advantage import Advantage, AdvantageResult, Estimator, FloatArray, Returns, RowTable
from tests.batches import row

ROWS = [
    row(uid, session, index, turn, agent, team=float(team))
    for uid, sessions in {"p": [(1, 0, 3), (0, 2, 1), (5, 1)], "q": [(2,), (0, 4, 4)]}.items()
    for session, rewards in enumerate(sessions)
    for index, (turn, agent, team) in enumerate(zip((0, 0, 1), "aba", rewards, strict=False))
]


# What is not kept


@dataclass(frozen=True)
class Broken(Estimator):
    """A = r - mean of the task, and a mistake."""

    mistake: str = ""

    def compute(self, table: RowTable, reward: FloatArray) -> AdvantageResult:
        uid = table.uid.codes
        mean = np.bincount(uid, weights=reward)[uid] / np.bincount(uid)[uid]
        parts: dict[str, Any] = {"ret": reward, "reward": reward, "baseline": mean, "scale": np.ones(len(table))}
        parts |= {"group": uid, "sample": np.arange(len(table)), "group_by": ("uid",)}
        if self.mistake == "groups":
            parts["group_by"] = ("uid", "agent")
        if self.mistake == "batch":
            parts["baseline"] = np.full(len(table), reward.mean())
        return AdvantageResult(**parts)


@dataclass(frozen=True)
class FirstOfSession(Returns):
    """R = reward of the session's first turn: another group's reward if groups are turns."""

    def compute(self, table: RowTable, reward: FloatArray) -> FloatArray:
        first = {
            (u, s): r for u, s, i, r in zip(table.uid.codes, table.session, table.index, reward, strict=True) if not i
        }
        return np.array([first.get(key, 0.0) for key in zip(table.uid.codes, table.session, strict=True)])


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (
            "groups",
            r"row p_0_0 is compared with rows p_0_0, .*; those that agree in \('uid', 'agent'\) are rows p_0_0, p_0_2",
        ),
        ("batch", r"with rewards of rows outside its group changed to -7\.0"),
    ],
)
def test_a_bug_is_reported(mistake: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_algorithm(Broken(mistake), ROWS)


def test_rows_outside_the_reach_must_not_matter() -> None:
    method = Advantage(returns=FirstOfSession(), group=("uid", "turn", "agent"))
    with pytest.raises(AssertionError, match="rows outside its group"):
        check_algorithm(method, ROWS)
    check_algorithm(method, ROWS, reach="task")
    with pytest.raises(AssertionError, match="rows outside its task"):
        check_algorithm(Broken("batch"), ROWS, reach="task")
    check_algorithm(Broken("batch"), ROWS, reach="batch")
