"""AT-GRPO's filter of groups."""

import numpy as np
from marl_verl_testing.rows import algorithm, row

from marl_verl.algo.advantage import RowTable

MEANS = {"a": [(0.0, 1.0), (2.0, 4.0), (9.0, 9.0), (5.0, 6.0)], "b": [(50.0, 60.0), (70.0, 71.0)]}
ROWS = [
    row(f"q{task}", k, number, 0, agent, team=reward)
    for number, (agent, groups) in enumerate(MEANS.items())
    for task, rewards in enumerate(groups)
    for k, reward in enumerate(rewards)
]


def filtered(**options: object) -> list[str]:
    """The groups with an advantage of 0 in all rows that have another one without the filter."""
    with_filter, without = (
        algorithm("at-grpo-sessions", **each).compute(RowTable.from_rows(ROWS)).advantage for each in (options, {})
    )
    assert np.all((with_filter == without) | (with_filter == 0))
    changed = [one for one, a, b in zip(ROWS, with_filter, without, strict=True) if a != b]
    return sorted({f"{one['agent']}-{one['uid']}" for one in changed})


def test_the_groups_of_an_agent_with_the_lowest_mean_are_left_out() -> None:
    assert filtered(filter_ratio=0.5) == ["a-q0", "a-q1", "b-q0"]
    assert filtered() == []
