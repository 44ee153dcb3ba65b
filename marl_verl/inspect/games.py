"""Cooperative games: the shares of the players, for `marl-verl explain`.

The rows of a document whose algorithm is "shapley": {"players": [...], "values": {coalition: value}}.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from marl_verl.credit import leave_one_out, shapley
from marl_verl.errors import MarlError, nearest, shown
from marl_verl.inspect.files import about
from marl_verl.inspect.texts import cell, columns, count

GAMES = "shapley"
"""Not an algorithm that trains: the name under which a document's rows are games."""

LARGEST = float(np.finfo(np.float64).max)

Game = tuple[tuple[str, ...], Mapping[frozenset[str], float]]
"""(players, coalition -> value)."""


@dataclass(frozen=True)
class Games:
    """Games whose every coalition has a value."""

    games: list[Game]

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]]) -> Games:
        """From {"players": [...], "values": {"": v, "a": v, "a,b": v, ...}}. MarlError, which names the row."""
        if not rows:
            raise MarlError("there are no rows: a game is {players: [...], values: {...}}")
        return cls([_game(row, f"row {i}") for i, row in enumerate(rows)])

    def records(self) -> list[dict[str, Any]]:
        """One record per game: {"shapley": {player: value}, "leave_one_out": {player: value}}.

        MarlError, which names the row, for a coalition without a value, too many players, or values too far apart.
        """
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
        """Each player's share in each game, and what the shares add up to; lines are cut at `width`."""
        lines = []
        for i, ((players, values), record) in enumerate(zip(self.games, self.records(), strict=True)):
            everyone, nobody = cell(values[frozenset(players)]), cell(values[frozenset()])
            lines += [f"game {i}: {count(len(players), 'player')}, v(all) = {everyone}, v(nobody) = {nobody}"]
            shares = [[p, cell(record["shapley"][p]), cell(record["leave_one_out"][p])] for p in players]
            table = columns(["player", "shapley", "leave-one-out"], shares, width and width - 2)
            total = cell(sum(record["shapley"].values()))
            lines += [f"  {line}" for line in (*table, f"the Shapley values add up to v(all) - v(nobody) = {total}")]
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
            raise MarlError(f"{where}: coalition '{written}' names a player twice, or stands there twice")
        if not isinstance(value, int | float) or isinstance(value, bool) or not -LARGEST <= value <= LARGEST:
            raise MarlError(f"{where}: the value of coalition '{written}' must be a finite number, got {shown(value)}")
        values[coalition] = float(value)
    return tuple(players), values
