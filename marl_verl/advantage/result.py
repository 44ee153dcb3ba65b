"""What an algorithm computes: one advantage per row, and all that explains it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from marl_verl.advantage.rows import FloatArray, IntArray


@dataclass(frozen=True)
class Advantages:
    """Per row [n], float64: advantage = (ret - baseline) / scale. Padding rows have 0 everywhere, and scale 1.

    Attributes:
        advantage, ret, baseline, scale: as in the equation; `ret` is the return that was compared (a session's mean,
            where a session counts once).
        reward: the row's own reward, as the mix made it.
        group: ids of the groups, 0..G-1; -1 for padding.
        sample: ids of what counted once; rows of one sample share it; -1 for padding.
        group_by: the columns whose values make a group.
        also: further groups inside these that a row was compared in (GiGPO's steps): (what they share, [n] ids).
        stages: what became of a row's reward on the way to its return, in order: (what was done, [n] values after it).
        target: what a critic should have expected, which it learns from; None where the returns need no critic.
    """

    advantage: FloatArray
    ret: FloatArray
    reward: FloatArray
    baseline: FloatArray
    scale: FloatArray
    group: IntArray
    sample: IntArray
    group_by: tuple[str, ...]
    stages: tuple[tuple[str, FloatArray], ...] = ()
    also: tuple[tuple[str, IntArray], ...] = ()
    target: FloatArray | None = None

    @classmethod
    def of(
        cls,
        ret: FloatArray,
        reward: FloatArray,
        baseline: FloatArray,
        scale: FloatArray,
        group: IntArray,
        sample: IntArray,
        group_by: tuple[str, ...],
        stages: Sequence[tuple[str, FloatArray]] = (),
        also: Sequence[tuple[str, IntArray]] = (),
        target: FloatArray | None = None,
    ) -> Advantages:
        """The result whose advantage follows from the rest: A = (ret - baseline) / scale."""
        advantage = (ret - baseline) / scale
        return cls(advantage, ret, reward, baseline, scale, group, sample, group_by, tuple(stages), tuple(also), target)

    def members(self, row: int) -> IntArray:
        """The rows that `row` was compared with, itself included, ascending; none for padding."""
        group = int(self.group[row])
        if group < 0:
            return np.zeros(0, dtype=np.int64)
        order, starts = self._by_group
        return order[starts[group] : starts[group + 1]]

    def scatter(self, rows: IntArray, n: int) -> Advantages:
        """The same result in a table of n rows, where these are `rows` and all others are padding."""

        def spread(values: FloatArray, fill: float) -> FloatArray:
            out = np.full(n, fill)
            out[rows] = values
            return out

        def spread_ids(ids: IntArray) -> IntArray:
            out = np.full(n, -1, dtype=np.int64)
            out[rows] = ids
            return out

        return Advantages(
            advantage=spread(self.advantage, 0.0),
            ret=spread(self.ret, 0.0),
            reward=spread(self.reward, 0.0),
            baseline=spread(self.baseline, 0.0),
            scale=spread(self.scale, 1.0),
            group=spread_ids(self.group),
            sample=spread_ids(self.sample),
            group_by=self.group_by,
            stages=tuple((what, spread(values, 0.0)) for what, values in self.stages),
            also=tuple((what, spread_ids(ids)) for what, ids in self.also),
            target=None if self.target is None else spread(self.target, 0.0),
        )

    @functools.cached_property
    def _by_group(self) -> tuple[IntArray, IntArray]:
        order = np.argsort(self.group, kind="stable")
        return order, np.searchsorted(self.group[order], np.arange(int(self.group.max()) + 2))
