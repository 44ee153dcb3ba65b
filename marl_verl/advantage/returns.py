"""Returns: what the rewards from a turn on are worth to that turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from marl_verl.advantage.rows import FloatArray, RowTable

Returns = Callable[[RowTable, FloatArray], FloatArray]


def immediate(table: RowTable, reward: FloatArray) -> FloatArray:
    """R_t = r_t: a turn answers for its own reward (a team reward is on every turn, so it counts)."""
    return reward


RETURNS: Mapping[str, Returns] = {"immediate": immediate}
