"""How each row came by its advantage: one code path for a file, a stored step of a run, and training itself.

A document is what a file holds: {"algorithm": name, "options": {...}, "rows": [...]}; further keys are ignored. Rows
are those of `RowTable.from_rows`, and for the algorithm "shapley" games: {"players": [...], "values": {coalition: v}}.
NumPy only; no torch, ray or verl import.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from marl_verl import plugins
from marl_verl.advantage import Advantages, RowTable
from marl_verl.advantage.rows import IntArray
from marl_verl.algorithms import Algorithm
from marl_verl.config.parts import algorithm_named
from marl_verl.errors import MarlError, nearest, shown, unknown
from marl_verl.inspect.games import GAMES, Games

KEYS = ("algorithm", "options", "rows")

Record = dict[str, Any]
Transform = tuple[str, float]


def derive(document: object) -> Explanation | Games:
    """Compute the advantages of a document as training does, and keep what led to them.

    Raises:
        MarlError: a key that is missing or has the wrong type; an unknown algorithm, option or component (nearest
            offered); whatever `RowTable.from_rows` and `Algorithm.compute` refuse.
    """
    name, options, rows = _parts(document)
    if name == GAMES:
        for option in options:
            raise MarlError(f"unknown key 'options.{option}': '{GAMES}' has no options")
        return Games.of(rows)
    known = [*plugins.load().names("algorithms"), GAMES]
    if name not in known:
        raise unknown("algorithm", name, known)
    algorithm = algorithm_named(name, options, "options")
    for kind, part in (("samplers", algorithm.sampler), ("losses", algorithm.loss)):
        plugins.load().entry(kind, part)  # only named here; what they do is done elsewhere
    table = RowTable.from_rows(rows, declared=_components(document))
    return Explanation(name, algorithm, table, algorithm.compute(table))


@dataclass(frozen=True)
class Explanation:
    """The rows of a batch, and what an algorithm made of them."""

    name: str
    algorithm: Algorithm
    table: RowTable
    result: Advantages

    def records(self) -> list[Record]:
        """One record per row; advantage = (return - baseline) / scale holds in each.

        key         "{uid}_{session}_{index}"
        agent       who acted
        padding     whether the row only fills a batch: it then has no group, no members, no transforms, and zeros
        group       column -> value, of the columns that its members share with it
        members     keys of the rows that it was compared with, itself included, in row order
        also        where an algorithm compares twice (GiGPO): what else rows share -> keys of those that do
        reward      its components, mixed
        return      what was compared; baseline, scale: with what, and in which unit
        advantage
        transforms  [{"name", "value"}]: each component, their mix, and every value on the way to the return

        MarlError for a transform that is NaN or infinite.
        """
        keys = [self.table.key(row) for row in range(len(self.table))]
        members = _keys_by_group(self.result.group, keys)
        also = {what: (ids, _keys_by_group(ids, keys)) for what, ids in self.result.also}
        transforms = self.transforms()
        return [
            {
                "key": key,
                "agent": self.table.agent.value(row),
                "padding": bool(self.table.padding[row]),
                "group": self.group(row),
                "members": members[int(self.result.group[row])],
                **({"also": {what: shared[int(ids[row])] for what, (ids, shared) in also.items()}} if also else {}),
                "reward": float(self.result.reward[row]),
                "return": float(self.result.ret[row]),
                "baseline": float(self.result.baseline[row]),
                "scale": float(self.result.scale[row]),
                "advantage": float(self.result.advantage[row]),
                "transforms": [{"name": name, "value": value} for name, value in transforms[row]],
            }
            for row, key in enumerate(keys)
        ]

    def row(self, key: str) -> int:
        """The row with a key; padding only where no other row has it. MarlError with the nearest key."""
        keys = [self.table.key(row) for row in range(len(self.table))]
        found = [row for row, known in enumerate(keys) if known == key]
        if not found:
            hint = nearest(key, keys)
            if not hint.startswith("did"):  # it names all keys where none is near
                hint = f"keys are like '{keys[0]}'"
            raise MarlError(f"unknown row '{key}': {hint}")
        return min(found, key=lambda row: bool(self.table.padding[row]))

    def group(self, row: int) -> dict[str, str | int | None] | None:
        """Column -> value that make the row's group; None for padding."""
        if self.result.group[row] < 0:
            return None
        return {column: self.table.value(column, row) for column in self.result.group_by}

    def transforms(self) -> list[list[Transform]]:
        """Each row's way to its return, in order; the last value is the return. None for padding. MarlError if one of
        them is NaN or infinite."""
        found = self._components()
        stages = [(f"mix: {self.algorithm.rewards.name}", self.result.reward), *self.result.stages]
        if not np.array_equal(stages[-1][1], self.result.ret):
            stages.append(("return", self.result.ret))
        for row in self.table.order().tolist():
            found[row] += [(name, float(values[row])) for name, values in stages]
            for name, value in found[row]:
                if not math.isfinite(value):
                    raise MarlError(f"'{name}' of row '{self.table.key(row)}' is {value}")
        return found

    def _components(self) -> list[list[Transform]]:
        """What each row's reward is mixed from, with what the algorithm's credit adds."""
        rows = self.table.order()
        with np.errstate(over="ignore", invalid="ignore"):  # told by `transforms`, with the row
            real = self.algorithm.credited(self.table.take(rows))
        found: list[list[Transform]] = [[] for _ in range(len(self.table))]
        for name in sorted(real.rewards):
            for at in np.flatnonzero(real.present[name]).tolist():
                found[int(rows[at])].append((f"component: {name}", float(real.rewards[name][at])))
        return found


def _keys_by_group(group: IntArray, keys: list[str]) -> dict[int, list[str]]:
    """Group -> the keys of its rows, in row order; padding (-1) has none."""
    members: dict[int, list[str]] = {}
    for key, number in zip(keys, group.tolist(), strict=True):
        members.setdefault(number, []).append(key)
    members[-1] = []
    return members


def _parts(document: object) -> tuple[str, dict[str, Any], list[Mapping[str, Any]]]:
    if not isinstance(document, Mapping):
        raise MarlError(f"a document is a mapping with {', '.join(KEYS)}, got {shown(document)}")
    for key in KEYS:
        if key not in document:
            raise MarlError(f"the document has no '{key}': it needs {', '.join(KEYS)}")
    name, options, rows = (document[key] for key in KEYS)
    if not isinstance(name, str):
        raise MarlError(f"'algorithm' must be the name of one, got {shown(name)}")
    if not isinstance(options, Mapping):
        raise MarlError(f"'options' must be a mapping, got {shown(options)}")
    if not isinstance(rows, list):
        raise MarlError(f"'rows' must be a list, got {shown(rows)}")
    for i, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise MarlError(f"row {i} must be a mapping, got {shown(row)}")
    return name, dict(options), rows


def _components(document: object) -> list[str]:
    """The reward components that the run declared: a stored step has them, a document written by hand need not."""
    assert isinstance(document, Mapping)
    found = document.get("components", [])
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise MarlError(f"'components' must be a list of names, got {shown(found)}")
    return found
