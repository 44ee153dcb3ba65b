"""How each advantage was computed, with the same code for a file, a stored step of a run, and training.

A document is {"algorithm": name, "options": {...}, "rows": [...]}; its rows are those of `RowTable.from_rows`, or, for
the algorithm "shapley", cooperative games: {"players": [...], "values": {coalition: v}}.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from marl_verl import plugins
from marl_verl.algo.advantage import AdvantageResult, IntArray, RowTable
from marl_verl.algo.algorithms import Algorithm
from marl_verl.algo.credit import leave_one_out, shapley
from marl_verl.config.parts import algorithm_named
from marl_verl.errors import MarlError, nearest, shown, unknown
from marl_verl.inspect.run_files import about
from marl_verl.inspect.texts import cell, columns, count

# key of a document -> (type of its value, name of the type in errors)
KEYS = {"algorithm": (str, "the name of one"), "options": (Mapping, "a mapping"), "rows": (list, "a list")}

GAMES = "shapley"  # not a training algorithm; the rows of such a document are games
LARGEST = float(np.finfo(np.float64).max)
Game = tuple[tuple[str, ...], Mapping[frozenset[str], float]]  # (players, coalition -> value)

Record = dict[str, Any]


def derive(document: object) -> Explanation | Games:
    """Compute the advantages of a document as training does, with their derivation. MarlError: an invalid document."""
    if not isinstance(document, Mapping):
        raise MarlError(f"a document is a mapping with {', '.join(KEYS)}, got {shown(document)}")
    for key in KEYS:
        if key not in document:
            raise MarlError(f"the document has no '{key}': it needs {', '.join(KEYS)}")
    for key, (kind, what) in KEYS.items():
        if not isinstance(document[key], kind):
            raise MarlError(f"'{key}' must be {what}, got {shown(document[key])}")
    name, options, rows = (document[key] for key in KEYS)
    for i, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise MarlError(f"row {i} must be a mapping, got {shown(row)}")
    if name == GAMES:
        for option in options:
            raise MarlError(f"unknown key 'options.{option}': '{GAMES}' has no options")
        return Games.of(rows)
    known = [*plugins.load().names("algorithms"), GAMES]
    if name not in known:
        raise unknown("algorithm", name, known)
    algorithm = algorithm_named(name, dict(options), "options")
    for registry, part in (("samplers", algorithm.sampler), ("losses", algorithm.loss)):
        plugins.load().entry(registry, part)  # only checks the name
    declared = document.get("components", [])  # optional; a stored step has them
    if not isinstance(declared, list) or not all(isinstance(component, str) for component in declared):
        raise MarlError(f"'components' must be a list of names, got {shown(declared)}")
    table = RowTable.from_rows(rows, declared=declared)
    return Explanation(name, algorithm, table, algorithm.compute(table))


@dataclass(frozen=True)
class Explanation:
    """The rows of a batch and the result of an algorithm."""

    name: str
    algorithm: Algorithm
    table: RowTable
    result: AdvantageResult

    def records(self) -> list[Record]:
        """One record per row, with the keys of docs/explain.md; advantage = weight * (return - baseline) / scale holds.

        Padding has no group, no members, no transforms, and zeros. MarlError for a transform that is NaN or infinite.
        """
        result, keys = self.result, [self.table.key(row) for row in range(len(self.table))]
        members = _keys_by_group(result.group, keys)
        also = {what: (ids, _keys_by_group(ids, keys)) for what, ids in result.also}
        numbers = {"reward": result.reward, "return": result.ret, "baseline": result.baseline, "scale": result.scale}
        numbers["advantage"] = result.advantage
        if result.weight is not None:
            numbers["weight"] = result.weight
        transforms, group_by = self._transforms(), result.group_by
        computed = [self.table.computed(row) for row in range(len(keys))]
        return [
            {
                "key": key,
                "agent": self.table.agent.value(row),
                "padding": bool(self.table.padding[row]),
                "group": {name: self.table.value(name, row) for name in group_by} if result.group[row] >= 0 else None,
                "members": members[int(result.group[row])],
                **({"also": {what: shared[int(ids[row])] for what, (ids, shared) in also.items()}} if also else {}),
                **({"columns": computed[row]} if computed[row] else {}),
                **{name: float(values[row]) for name, values in numbers.items()},
                **({} if result.tokens is None else {"tokens": result.tokens[row].tolist()}),
                "transforms": [{"name": name, "value": value} for name, value in transforms[row]],
            }
            for row, key in enumerate(keys)
        ]

    def _transforms(self) -> list[list[tuple[str, float]]]:
        """Each row's components (including the credit), their mix, and all intermediate values up to its return."""
        found: list[list[tuple[str, float]]] = [[] for _ in range(len(self.table))]
        rows = self.table.order()
        with np.errstate(over="ignore", invalid="ignore"):  # raised below, with the row
            real = self.algorithm.credited(self.table.take(rows))
        for name in sorted(real.rewards):
            for at in np.flatnonzero(real.present[name]).tolist():
                found[int(rows[at])].append((f"component: {name}", float(real.rewards[name][at])))
        stages = [(f"mix: {self.algorithm.rewards.name}", self.result.reward), *self.result.stages]
        if not np.array_equal(stages[-1][1], self.result.ret):
            stages.append(("return", self.result.ret))
        for row in rows.tolist():
            found[row] += [(name, float(values[row])) for name, values in stages]
            for name, value in found[row]:
                if not math.isfinite(value):
                    raise MarlError(f"'{name}' of row '{self.table.key(row)}' is {value}")
        return found


def _keys_by_group(group: IntArray, keys: list[str]) -> dict[int, list[str]]:
    """Group -> the keys of its rows, in row order; padding (-1) has none."""
    members: dict[int, list[str]] = {}
    for key, number in zip(keys, group.tolist(), strict=True):
        members.setdefault(number, []).append(key)
    return {**members, -1: []}


@dataclass(frozen=True)
class Games:
    """Cooperative games."""

    games: list[Game]

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]]) -> Games:
        """From {"players": [...], "values": {"": v, "a": v, "a,b": v, ...}}; an error names the row."""
        if not rows:
            raise MarlError("there are no rows: a game is {players: [...], values: {...}}")
        return cls([_game(row, f"row {i}") for i, row in enumerate(rows)])

    def records(self) -> list[dict[str, Any]]:
        """One record per game: {"shapley": {player: value}, "leave_one_out": {player: value}}; errors name the row."""
        records = []
        for i, game in enumerate(self.games):
            with about(f"row {i}"):
                records.append({"shapley": shapley(*game), "leave_one_out": leave_one_out(*game)})
                for what, shares in records[-1].items():
                    for player, share in shares.items():
                        if not math.isfinite(share):
                            raise MarlError(f"{what} of '{player}' is {share}: the values are too far apart")
        return records

    def text(self, width: int | None) -> str:
        """The shares of the players in each game and their sum; lines are cut at `width`."""
        lines = []
        for i, ((players, values), record) in enumerate(zip(self.games, self.records(), strict=True)):
            all_players, none = cell(values[frozenset(players)]), cell(values[frozenset()])
            lines += [f"game {i}: {count(len(players), 'player')}, v(all) = {all_players}, v(none) = {none}"]
            shares = [[p, cell(record["shapley"][p]), cell(record["leave_one_out"][p])] for p in players]
            table = columns(["player", "shapley", "leave-one-out"], shares, width and width - 2)
            total = cell(sum(record["shapley"].values()))
            lines += [f"  {line}" for line in (*table, f"the Shapley values add up to v(all) - v(none) = {total}")]
            lines.append("")
        return "\n".join(lines[:-1])


def _game(row: Mapping[str, Any], where: str) -> Game:
    for key in ("players", "values"):
        if key not in row:
            raise MarlError(f"{where} has no '{key}'")
    players, given = row["players"], row["values"]
    if not isinstance(players, list):
        raise MarlError(f"{where}: 'players' must be a list of names, got {shown(players)}")
    for player in players:
        if not isinstance(player, str) or not player or "," in player:
            raise MarlError(f"{where}: a player is a name without ',', got {shown(player)}")
    if not isinstance(given, Mapping):
        raise MarlError(f"{where}: 'values' must be a mapping from coalitions to numbers, got {shown(given)}")
    values: dict[frozenset[str], float] = {}
    for written, value in given.items():
        names = written.split(",") if written else []
        for name in names:
            if name not in players:
                hint = nearest(name, players)
                raise MarlError(f"{where}: coalition '{written}' has the unknown player '{name}': {hint}")
        coalition = frozenset(names)
        if len(coalition) < len(names) or coalition in values:
            raise MarlError(f"{where}: coalition '{written}' names a player twice, or is given twice")
        if not isinstance(value, int | float) or isinstance(value, bool) or not -LARGEST <= value <= LARGEST:
            raise MarlError(f"{where}: the value of coalition '{written}' must be a finite number, got {shown(value)}")
        values[coalition] = float(value)
    return tuple(players), values
