"""Dr. MAS takes its penalty off for an invalid action."""

from __future__ import annotations

import numpy as np

from marl_verl.advantage import Advantages, Algorithm, RowTable
from marl_verl.testing.rows import Rows, algorithm, row


def compute(method: Algorithm, rows: Rows) -> Advantages:
    return method.compute(RowTable.from_rows(rows))


def advantage(method: Algorithm, rows: Rows) -> np.ndarray:
    return compute(method, rows).advantage


def test_an_invalid_action_costs_its_penalty_in_dr_mas_and_nothing_elsewhere() -> None:
    rows = [row("q", s, 0, 0, "a", team=1.0) for s in range(2)]
    rows[1]["invalid"] = True
    assert compute(algorithm("dr-mas", penalty=0.25), rows).reward.tolist() == [1.0, 0.75]
    assert advantage(algorithm("dr-mas"), rows)[0] > 0.5
    assert not advantage(algorithm("grpo"), rows).any()
