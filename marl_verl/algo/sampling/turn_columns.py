"""Computed columns: numbers that a plugin's functions add to each turn, where its texts and log-probs are at hand.

A function gets a turn and its episode and returns {column: number}; a list has one number per response token. Rows have
the numbers as `RowTable.column` and `RowTable.token_column`. A function may leave a column out for some turns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

from marl_verl.algo.advantage.rows import COUNTS, LABELS
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
    label = f"column function {name}, for turn {turn.index} of agent '{turn.agent}',"
    try:
        returned: Any = function(turn, episode)
    except Exception as error:
        raise MarlError(f"{label} failed: {format_error(error)}") from error
    if not isinstance(returned, Mapping):
        raise MarlError(f"{label} must return a mapping such as {{'nll': 0.5}}, got {shown(returned)}")
    for column, value in returned.items():
        if column in (*LABELS, *COUNTS, *turn.columns):
            raise MarlError(f"{label} returns column {shown(column)}, a name that rows have already. Rename it.")
        turn.columns[column] = _numbers(value, turn, f"{label} returns {shown(value)} as column '{column}'")


def _numbers(value: Any, turn: Turn, label: str) -> float | list[float]:
    values = value.tolist() if hasattr(value, "tolist") else value  # of NumPy and torch
    several = isinstance(values, list | tuple)
    for number in values if several else [values]:
        if not isinstance(number, Real) or isinstance(number, bool) or not math.isfinite(number):
            raise MarlError(f"{label}. A finite number, or a list with one per response token, is required.")
    if not several:
        return float(values)
    if len(values) != turn.length:
        raise MarlError(f"{label}: {len(values)} numbers for {turn.length} response tokens.")
    return [float(number) for number in values]
