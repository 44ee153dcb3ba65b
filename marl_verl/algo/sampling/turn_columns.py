"""Computed columns: numbers that a plugin's functions add to each turn, where its texts and log-probs are at hand.

A function gets a turn and its episode and returns {column: number}; a list has one number per response token. Rows have
the numbers as `RowTable.column` and `RowTable.token_column`. A function may leave a column out for some turns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

from marl_verl.algo.advantage.rows import COLUMNS
from marl_verl.algo.sampling.base import Sample
from marl_verl.episode import Episode, Turn
from marl_verl.errors import MarlError, format_error, shown

ColumnFunction = Callable[[Turn, Episode], Mapping[str, float | Sequence[float]]]


def add_columns(functions: Mapping[str, ColumnFunction], sample: Sample) -> None:
    """Set `columns` of every turn of a sample; a turn that several episodes share gets them from the first of these.

    Raises:
        MarlError: a function raised, or returned something else than a mapping from names to finite numbers. The
            message has the function's key in `functions` and the turn.
    """
    if not functions:
        return
    done: set[int] = set()
    for episode in sample.episodes:
        for turn in (*episode.turns, *episode.off_path_turns):
            if id(turn) not in done and not turn.transition:
                done.add(id(turn))
                for name, function in functions.items():
                    _add(name, function, turn, episode)


def _add(name: str, function: ColumnFunction, turn: Turn, episode: Episode) -> None:
    what = f"column function {name}, for turn {turn.index} of agent '{turn.agent}',"
    try:
        found: Any = function(turn, episode)
    except Exception as error:
        raise MarlError(f"{what} failed: {format_error(error)}") from error
    if not isinstance(found, Mapping):
        raise MarlError(f"{what} must return a mapping such as {{'nll': 0.5}}, got {shown(found)}")
    for column, value in found.items():
        if not isinstance(column, str) or column in COLUMNS or not column:
            raise MarlError(f"{what} returns column {shown(column)}. Use a name that rows do not have already.")
        if column in turn.columns:
            raise MarlError(f"{what} returns column '{column}', which another function returns too. Rename one.")
        turn.columns[column] = _numbers(value, turn, f"{what} returns {shown(value)} as column '{column}'")


def _numbers(value: Any, turn: Turn, what: str) -> float | list[float]:
    values = value.tolist() if hasattr(value, "tolist") else value  # of NumPy and torch
    each = values if isinstance(values, list | tuple) else [values]
    for number in each:
        if not isinstance(number, Real) or isinstance(number, bool) or not math.isfinite(number):
            raise MarlError(f"{what}. A finite number, or a list with one per response token, is required.")
    if each is not values:
        return float(values)
    if len(each) != turn.length:
        raise MarlError(f"{what}: {len(each)} numbers for {turn.length} response tokens.")
    return [float(number) for number in each]
