"""How each advantage was computed, with the same code for a file, a stored step of a run, and training.

A document is {"algorithm": name, "options": {...}, "rows": [...]}; its rows are those of `RowTable.from_rows`.
"""

from typing import Any

import msgspec
import numpy as np

from marl_verl.algo.advantage import AdvantageResult, IntArray, RowTable
from marl_verl.algo.algorithms import Algorithm

Record = dict[str, Any]


class Document(msgspec.Struct):
    """See the module. A stored step also has the reward components of the run, and the advantages of training."""

    algorithm: str
    options: dict[str, Any]
    rows: list[dict[str, Any]]
    components: list[str] = []
    advantage: list[float] | None = None
    tokens: list[list[float]] | None = None


def records(algorithm: Algorithm, table: RowTable, result: AdvantageResult) -> list[Record]:
    """One record per row, with the keys of docs/explain.md; advantage = weight * (return - baseline) / scale."""
    keys = table.keys()
    members = _keys_by_group(result.group, keys)
    numbers = {"reward": result.reward, "return": result.ret, "baseline": result.baseline, "scale": result.scale}
    numbers["advantage"] = result.advantage
    if result.weight is not None:
        numbers["weight"] = result.weight
    transforms, group_by = _transforms(algorithm, table, result), result.group_by
    computed = [table.computed(row) for row in range(len(keys))]
    return [
        {
            "key": key,
            "agent": table.agent.value(row),
            "group": {name: table.value(name, row) for name in group_by},
            "members": members[int(result.group[row])],
            **({"columns": computed[row]} if computed[row] else {}),
            **{name: float(values[row]) for name, values in numbers.items()},
            **({} if result.tokens is None else {"tokens": result.tokens[row].tolist()}),
            "transforms": [{"name": name, "value": value} for name, value in transforms[row]],
        }
        for row, key in enumerate(keys)
    ]


def _transforms(algorithm: Algorithm, table: RowTable, result: AdvantageResult) -> list[list[tuple[str, float]]]:
    """Each row's components (including the credit), their mix, and all intermediate values up to its return."""
    transforms: list[list[tuple[str, float]]] = [[] for _ in range(len(table))]
    rows = table.order()
    real = algorithm.credited(table.take(rows))
    for name in sorted(real.rewards):
        for at in np.flatnonzero(real.present[name]).tolist():
            transforms[int(rows[at])].append((f"component: {name}", float(real.rewards[name][at])))
    stages = [(f"mix: {algorithm.rewards.name}", result.reward), *result.stages]
    if not np.array_equal(stages[-1][1], result.ret):
        stages.append(("return", result.ret))
    for row in rows.tolist():
        transforms[row] += [(name, float(values[row])) for name, values in stages]
    return transforms


def _keys_by_group(group: IntArray, keys: list[str]) -> dict[int, list[str]]:
    """Group -> the keys of its rows, in row order."""
    members: dict[int, list[str]] = {}
    for key, number in zip(keys, group.tolist(), strict=True):
        members.setdefault(number, []).append(key)
    return members
