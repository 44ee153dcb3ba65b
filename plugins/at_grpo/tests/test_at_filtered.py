"""AT-GRPO's filter of groups."""

from __future__ import annotations

import numpy as np
import pytest
from marl_verl_testing.rows import algorithm

from marl_verl.algo.advantage import RowTable
from marl_verl.errors import MarlError

REWARDS = {"a": [(0.0, 1.0), (2.0, 4.0), (9.0, 9.0), (5.0, 6.0)], "b": [(50.0, 60.0), (70.0, 71.0)]}
ROWS = [
    {
        "uid": f"q{task}",
        "session": k,
        "index": number,
        "turn": 0,
        "agent": agent,
        "length": 1,
        "rewards": {"team": reward},
    }
    for number, (agent, groups) in enumerate(REWARDS.items())
    for task, rewards in enumerate(groups)
    for k, reward in enumerate(rewards)
]


def filtered(**options: object) -> list[str]:
    """The groups with an advantage of 0 in all rows that have another one without the filter."""
    with_filter, without = (
        algorithm("at-grpo-sessions", **each).compute(RowTable.from_rows(ROWS)).advantage for each in (options, {})
    )
    assert np.all((with_filter == without) | (with_filter == 0))
    return sorted(
        {f"{row['agent']}-{row['uid']}" for row, a, b in zip(ROWS, with_filter, without, strict=True) if a != b}
    )


def test_by_default_nothing_is_filtered() -> None:
    assert filtered() == filtered(filter_method="mean", filter_ratio=0.0) == []


def test_the_groups_of_an_agent_with_the_lowest_mean_are_left_out() -> None:
    assert filtered(filter_method="mean", filter_ratio=0.5) == ["a-q0", "a-q1", "b-q0"]


def test_the_number_is_rounded_down() -> None:
    assert filtered(filter_method="mean", filter_ratio=0.49) == ["a-q0"]


def test_groups_without_spread_are_first_by_std() -> None:
    assert filtered(filter_method="std", filter_ratio=0.25) == []  # a-q2, whose advantages are 0 anyway


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"filter_method": "meen"}, "did you mean 'mean'"),
        ({"filter_ratio": 1.0}, "must be a number >= 0 and < 1, got 1.0"),
    ],
)
def test_options_are_checked(options: dict[str, object], message: str) -> None:
    with pytest.raises(MarlError, match=message):
        algorithm("at-grpo", **options)
