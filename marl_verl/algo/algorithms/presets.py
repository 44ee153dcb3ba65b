"""GRPO, the preset of the core: A = (r - mean_uid) / (std_uid + 1e-6).

Compared: every row with every row of its task, of any agent and turn. GRPO assumes that a group shares one prompt. This
does not hold in a team, so that GRPO is the baseline ("turn-blind groups") of the other methods. Source: arXiv
2402.03300, verl's `compute_grpo_outcome_advantage`.

References such as `grpo` take plain rows (`RowTable.from_rows`) and return advantages: the equation as code, without
parts. A test compares them with the composed algorithms on random rows.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from marl_verl.algo.advantage.estimator import Advantage
from marl_verl.algo.advantage.rows import TASK
from marl_verl.algo.algorithms.algorithm import Algorithm

PlainRows = Sequence[Mapping[str, Any]]


def rewards_of(rows: PlainRows) -> list[float]:
    """The sum of the components of each row."""
    return [sum(row["rewards"].values()) for row in rows]


def in_groups(
    values: Sequence[float], rows: PlainRows, columns: Sequence[str], eps: float = 1e-6, raw: bool = False
) -> list[float]:
    """(value - mean) / (std + eps) over rows with equal columns, std unbiased; of one: 0, or `raw` / (1 + eps)."""
    keys = [tuple(row.get(column) for column in columns) for row in rows]
    groups: dict[Any, list[float]] = {}
    for key, value in zip(keys, values, strict=True):
        groups.setdefault(key, []).append(value)
    mean = {key: 0.0 if raw and len(group) == 1 else np.mean(group) for key, group in groups.items()}
    std = {key: np.std(group, ddof=1) if len(group) > 1 else 1.0 for key, group in groups.items()}
    return [float((value - mean[key]) / (std[key] + eps)) for key, value in zip(keys, values, strict=True)]


GRPO = Algorithm(advantage=Advantage(sample="row", group=TASK, singleton="raw"))


def grpo(rows: PlainRows) -> list[float]:
    return in_groups(rewards_of(rows), rows, ["uid"], raw=True)


REFERENCES: Mapping[str, Callable[..., list[float]]] = {"grpo": grpo}
