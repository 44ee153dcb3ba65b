"""How each row came by its advantage: one code path for a file, a stored step of a run, and training itself.

A document is what a file holds: {"algorithm": name, "options": {...}, "rows": [...]}; further keys are ignored. Rows
are those of `RowTable.from_rows`, and for the algorithm "shapley" games: {"players": [...], "values": {coalition: v}}.
NumPy only; no torch, ray or verl import.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from marl_verl import plugins
from marl_verl.advantage import Advantages, Algorithm, RowTable
from marl_verl.advantage.rows import IntArray
from marl_verl.credit import leave_one_out, shapley
from marl_verl.errors import MarlError, nearest, unknown
from marl_verl.parts import algorithm_named

KEYS = ("algorithm", "options", "rows")
SHAPLEY = "shapley"
"""Not an algorithm that trains: the name under which a document's rows are games."""
LARGEST = float(np.finfo(np.float64).max)

Transform = tuple[str, float]


def explain(document: object) -> list[dict[str, Any]]:
    """One JSON-able record per row of a document, in row order. Returns and errors as `derive` and its `records`."""
    return derive(document).records()


def derive(document: object) -> Explanation | Games:
    """Compute the advantages of a document as training does, and keep what led to them.

    Raises:
        MarlError: a key that is missing or has the wrong type; an unknown algorithm, option or component (nearest
            offered); whatever `RowTable.from_rows` and `Algorithm.compute` refuse.
    """
    name, options, rows = _parts(document)
    if name == SHAPLEY:
        for option in options:
            raise MarlError(f"unknown key 'options.{option}': '{SHAPLEY}' has no options")
        return Games.of(rows)
    known = [*plugins.load().names("algorithms"), SHAPLEY]
    if name not in known:
        raise unknown("algorithm", name, known)
    algorithm = algorithm_named(name, options, "options")
    for kind, part in (("samplers", algorithm.sampler), ("losses", algorithm.loss)):
        plugins.load().entry(kind, part)  # only named here; what they do is done elsewhere
    table = RowTable.from_rows(rows)
    return Explanation(name, algorithm, table, algorithm.compute(table))


def step_document(name: str, algorithm: Algorithm, table: RowTable, result: Advantages, step: int) -> dict[str, Any]:
    """The document of a training step: `derive` gives `result` back from it, and `advantage` [n] says what it was."""
    return {
        "algorithm": name,
        "options": algorithm.options(),
        "step": step,
        "rows": table.to_rows(),
        "advantage": result.advantage.tolist(),
    }


@dataclass(frozen=True)
class Explanation:
    """The rows of a batch, and what an algorithm made of them."""

    name: str
    algorithm: Algorithm
    table: RowTable
    result: Advantages

    def records(self) -> list[dict[str, Any]]:
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


@dataclass(frozen=True)
class Games:
    """Games whose every coalition has a value."""

    players: tuple[tuple[str, ...], ...]
    values: tuple[Mapping[frozenset[str], float], ...]

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]]) -> Games:
        """From {"players": [...], "values": {"": v, "a": v, "a,b": v, ...}}.

        MarlError, which names the row, for players that are no list of names, a coalition with an unknown player
        (nearest offered) or twice, or a value that is no finite number.
        """
        if not rows:
            raise MarlError("there are no rows: a game is {players: [...], values: {...}}")
        games = [(_players(row, f"row {i}"), row) for i, row in enumerate(rows)]
        values = tuple(_coalitions(players, row, f"row {i}") for i, (players, row) in enumerate(games))
        return cls(tuple(players for players, _ in games), values)

    def records(self) -> list[dict[str, Any]]:
        """One record per game: {"shapley": {player: value}, "leave_one_out": {player: value}}.

        MarlError, which names the row, for a coalition without a value, too many players, or values too far apart.
        """
        records = []
        for i, (players, values) in enumerate(zip(self.players, self.values, strict=True)):
            try:
                record = {"shapley": shapley(players, values), "leave_one_out": leave_one_out(players, values)}
            except MarlError as error:
                raise MarlError(f"row {i}: {error}") from error
            for what, shares in record.items():
                for player, share in shares.items():
                    if not math.isfinite(share):
                        raise MarlError(f"row {i}: {what} of '{player}' is {share}: the values are too far apart")
            records.append(record)
        return records


def _keys_by_group(group: IntArray, keys: list[str]) -> dict[int, list[str]]:
    """Group -> the keys of its rows, in row order; padding (-1) has none."""
    members: dict[int, list[str]] = {}
    for key, number in zip(keys, group.tolist(), strict=True):
        members.setdefault(number, []).append(key)
    members[-1] = []
    return members


def _parts(document: object) -> tuple[str, dict[str, Any], list[Mapping[str, Any]]]:
    if not isinstance(document, Mapping):
        raise MarlError(f"a document is a mapping with {', '.join(KEYS)}, got {_shown(document)}")
    for key in KEYS:
        if key not in document:
            raise MarlError(f"the document has no '{key}': it needs {', '.join(KEYS)}")
    name, options, rows = (document[key] for key in KEYS)
    if not isinstance(name, str):
        raise MarlError(f"'algorithm' must be the name of one, got {_shown(name)}")
    if not isinstance(options, Mapping):
        raise MarlError(f"'options' must be a mapping, got {_shown(options)}")
    if not isinstance(rows, list):
        raise MarlError(f"'rows' must be a list, got {_shown(rows)}")
    for i, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise MarlError(f"row {i} must be a mapping, got {_shown(row)}")
    return name, dict(options), rows


def _players(row: Mapping[str, Any], where: str) -> tuple[str, ...]:
    if "players" not in row:
        raise MarlError(f"{where} has no 'players'")
    players = row["players"]
    if not isinstance(players, list):
        raise MarlError(f"{where}: 'players' must be a list of names, got {_shown(players)}")
    for player in players:
        if not isinstance(player, str) or not player or "," in player:
            raise MarlError(f"{where}: a player is a name without ',', got {_shown(player)}")
    return tuple(players)


def _coalitions(players: tuple[str, ...], row: Mapping[str, Any], where: str) -> dict[frozenset[str], float]:
    if "values" not in row:
        raise MarlError(f"{where} has no 'values'")
    given = row["values"]
    if not isinstance(given, Mapping):
        raise MarlError(f"{where}: 'values' must be a mapping from coalitions to numbers, got {_shown(given)}")
    values: dict[frozenset[str], float] = {}
    for written, value in given.items():
        names = written.split(",") if written else []
        for name in names:
            if name not in players:
                hint = nearest(name, players)
                raise MarlError(f"{where}: coalition '{written}' has the unknown player '{name}': {hint}")
        coalition = frozenset(names)
        if len(coalition) < len(names) or coalition in values:
            raise MarlError(f"{where}: coalition '{written}' names a player twice, or stands there twice")
        if not isinstance(value, int | float) or isinstance(value, bool) or not -LARGEST <= value <= LARGEST:
            raise MarlError(f"{where}: the value of coalition '{written}' must be a finite number, got {_shown(value)}")
        values[coalition] = float(value)
    return values


def _shown(value: object) -> str:
    return f"{value!r:.60}"
