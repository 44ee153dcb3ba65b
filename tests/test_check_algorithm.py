"""`check_algorithm`: every shipped algorithm passes on random rows, and each violation is reported."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marl_verl_testing import check_algorithm

from marl_verl.algo.advantage import (
    Advantage,
    AdvantageResult,
    Baseline,
    Estimator,
    FloatArray,
    LeaveOneOut,
    Returns,
    RowTable,
)
from marl_verl.algo.algorithms import Algorithm
from marl_verl.algo.rewards import Mix
from marl_verl.errors import MarlError
from tests.batches import FIT, SHIPPED, algorithm, row

# returns that add up what others of the session earned
ACROSS_GROUPS = ("magrpo", "sharp")
ROWS = [
    row(uid, session, index, turn, agent, team=float(team))
    for uid, sessions in {"p": [(1, 0, 3), (0, 2, 1), (5, 1)], "q": [(2,), (0, 4, 4)]}.items()
    for session, rewards in enumerate(sessions)
    for index, (turn, agent, team) in enumerate(zip((0, 0, 1), "aba", rewards, strict=False))
]


@pytest.mark.parametrize("name", SHIPPED)
@given(data=st.data(), seed=st.integers(0, 9))
@settings(max_examples=5)
def test_every_shipped_algorithm_keeps_its_promises(name: str, data: st.DataObject, seed: int) -> None:
    rows = data.draw(FIT[name]())
    check_algorithm(algorithm(name), rows, reach="task" if name.startswith(ACROSS_GROUPS) else "group", seed=seed)


def test_it_returns_the_advantages() -> None:
    expected = algorithm("grpo").compute(RowTable.from_rows(ROWS))
    assert check_algorithm(algorithm("grpo"), ROWS).advantage.tolist() == expected.advantage.tolist()


def test_an_advantage_by_itself_is_one_of_the_sum_of_components() -> None:
    rows = [{**r, "rewards": {"team": 1.0, "role": r["rewards"]["team"]}} for r in ROWS]
    result = check_algorithm(Advantage(group=("uid", "agent")), rows)
    assert result.reward.tolist() == [1.0 + r["rewards"]["team"] for r in ROWS]


@pytest.mark.parametrize("of_role", ["a", "b", "ab"])
@pytest.mark.parametrize("name", ["my-rloo", "tool", "grpo"])
def test_a_component_may_belong_to_some_agents_only(name: str, of_role: str) -> None:
    """README's algorithm, also where one agent has a role reward; a tool that no agent has called."""
    leave_one_out = Advantage(group=("uid", "agent"), baseline=LeaveOneOut(), norm_by_std=False)
    method = {
        "my-rloo": Algorithm(rewards=Mix(team=1.0, role=0.5), advantage=leave_one_out),
        "tool": Algorithm(rewards=Mix(team=1.0, role=0.5, tool=1.0), advantage=leave_one_out),
        "grpo": algorithm("grpo", group="agent"),
    }[name]
    rows = [
        {
            **r,
            "rewards": {"role": float(r["index"])} if r["agent"] in of_role else {},
            "team_reward": 1.0 * r["session"],
        }
        for r in ROWS
    ]
    expected = [r["team_reward"] + (0.5 if name != "grpo" else 1.0) * r["rewards"].get("role", 0.0) for r in rows]
    assert check_algorithm(method, rows).reward.tolist() == expected


def test_a_component_that_no_row_has_is_unknown() -> None:
    with pytest.raises(MarlError, match="unknown reward component 'rule'"):
        check_algorithm(Algorithm(rewards=Mix(team=1.0, rule=0.2)), ROWS)


def test_a_tree_keeps_its_nodes() -> None:
    """Turns of one group whose parents are in another: taking these away would make it no tree."""
    rows = [
        {**row("q", 0, i, i, "a", team=1.0 * i), "node": f"n{i}", "parent": f"n{i - 1}" if i else None} for i in (0, 1)
    ]
    rows += [{**r, "uid": "p", "rewards": {"team": 3.0}} for r in rows]
    check_algorithm(
        Advantage(group=("uid", "turn", "agent"), singleton="batch", norm_by_std=False), rows, reach="batch"
    )
    check_algorithm(Advantage(group=("uid", "turn", "agent")), rows)


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
        if self.mistake == "count":
            parts["baseline"] = mean + len(table)
        if self.mistake == "negative":
            parts["scale"] = -parts["scale"]
        found = AdvantageResult.of(**parts)
        if self.mistake == "clipped":
            return dataclasses.replace(found, advantage=np.clip(found.advantage, -1.0, 1.0))
        if self.mistake == "nan":
            return dataclasses.replace(found, ret=np.full(len(table), np.nan))
        return found


@dataclass(frozen=True)
class Remembers(Baseline):
    """b = what the group with this number had when it was seen first, and a little more each time."""

    seen: list[int] = field(default_factory=list)

    def compute(self, value: FloatArray, group: Any) -> FloatArray:
        self.seen.append(1)
        return np.full(len(value), 1.0 * len(self.seen))


@dataclass(frozen=True)
class FirstOfSession(Returns):
    """R = reward of the session's first turn: another group's reward if groups are turns."""

    def compute(self, table: RowTable, reward: FloatArray) -> FloatArray:
        first = {
            (u, s): r for u, s, i, r in zip(table.uid.codes, table.session, table.index, reward, strict=True) if not i
        }
        return np.array([first.get(key, 0.0) for key in zip(table.uid.codes, table.session, strict=True)])


def test_the_correct_estimator_passes() -> None:
    check_algorithm(Broken(), ROWS)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (
            "groups",
            r"row p_0_0 is compared with rows p_0_0, .*; those that agree in \('uid', 'agent'\) are rows p_0_0, p_0_2",
        ),
        ("batch", r"with rewards of rows outside its group changed to -7\.0"),
        ("count", r"has advantage .*, and without rows outside its group"),
        ("negative", r"has scale .*-1\.0\)?: the scale is not above 0"),
        ("clipped", r"is not \(ret - baseline\) / scale; create the result with AdvantageResult\.of"),
        ("nan", r"row p_0_0 \(agent 'a'\) has ret .*: `ret` is not a finite number"),
    ],
)
def test_a_bug_is_reported(mistake: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_algorithm(Broken(mistake), ROWS)


def test_numbers_that_depend_on_earlier_calls_fail() -> None:
    with pytest.raises(AssertionError, match=r"has advantage .*, and with the rows in another order"):
        check_algorithm(Advantage(baseline=Remembers(), norm_by_std=False), ROWS)


def test_padding_that_counts_fails() -> None:
    class Counts(Algorithm):
        def compute(self, table: RowTable) -> AdvantageResult:
            found = super().compute(table)
            return dataclasses.replace(found, group=np.abs(found.group))

    with pytest.raises(AssertionError, match="a padding row is in a group"):
        check_algorithm(Counts(), ROWS)


def test_rows_outside_the_reach_must_not_matter() -> None:
    method = Advantage(returns=FirstOfSession(), group=("uid", "turn", "agent"))
    with pytest.raises(AssertionError, match="rows outside its group"):
        check_algorithm(method, ROWS)
    check_algorithm(method, ROWS, reach="task")
    with pytest.raises(AssertionError, match="rows outside its task"):
        check_algorithm(Broken("batch"), ROWS, reach="task")
    check_algorithm(Broken("batch"), ROWS, reach="batch")


def test_what_it_is_given_is_looked_at() -> None:
    with pytest.raises(MarlError, match="padding rows, which check_algorithm adds itself"):
        check_algorithm(Advantage(), [*ROWS, {**ROWS[0], "padding": True}])
    wrong: Any = "tasks"
    with pytest.raises(MarlError, match="unknown reach 'tasks': did you mean 'task'"):
        check_algorithm(Advantage(), ROWS, reach=wrong)
    with pytest.raises(MarlError, match="there are no rows"):
        check_algorithm(Advantage(), [])
