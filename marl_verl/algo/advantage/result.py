"""The result of an algorithm: one advantage per row with its derivation; and statistics per agent."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from marl_verl.algo.advantage.columns import FloatArray, IntArray, TokenArray, extremes, token_arrays
from marl_verl.algo.advantage.rows import RowTable


@dataclass(frozen=True)
class AdvantageResult:
    """Per row [n], float64: advantage = weight * (ret - baseline) / scale. Padding rows have 0 everywhere, and scale
    and weight 1.

    Attributes:
        ret, baseline, scale: as in the equation; `ret` is the return that was compared (the session's mean if a session
            counts once).
        reward: the reward of the row, after the mix.
        group: ids of the groups, 0..G-1; -1 for padding. A row of an untrained agent is alone in its group.
        sample: ids of the samples; rows of one sample count once; -1 for padding.
        group_by: the columns that define a group.
        also: further groups in which a row was compared (GiGPO's steps): (what the rows share, [n] ids).
        stages: intermediate values between reward and return, in order: (name of the step, [n] values after it).
        target: value target of the critic; None if the returns need no critic.
        weight: factor of each advantage, 0 or more; None: all are 1. See `weighted`.
        outside: whether the baseline is the return of an episode outside of the group (ReMax), so that a group of one
            is compared.
        tokens: an advantage per response token, before the weight: arrays [length]; the update uses them in place of
            the row's `advantage`, which statistics use. None: every token has the row's. See `with_tokens`.
    """

    ret: FloatArray
    reward: FloatArray
    baseline: FloatArray
    scale: FloatArray
    group: IntArray
    sample: IntArray
    group_by: tuple[str, ...]
    stages: Sequence[tuple[str, FloatArray]] = ()
    also: Sequence[tuple[str, IntArray]] = ()
    target: FloatArray | None = None
    weight: FloatArray | None = None
    tokens: TokenArray | None = None
    outside: bool = False

    @functools.cached_property
    def advantage(self) -> FloatArray:
        """[n] weight * (ret - baseline) / scale."""
        advantage: FloatArray = (self.ret - self.baseline) / self.scale
        return advantage if self.weight is None else self.weight * advantage

    def weighted(self, weight: FloatArray) -> "AdvantageResult":
        """The result with each advantage multiplied by a weight [n], finite and at least 0; weights multiply."""
        return replace(self, weight=weight if self.weight is None else self.weight * weight)

    def with_tokens(self, values: Sequence[Any]) -> "AdvantageResult":
        """The result with an advantage per response token: for each row a sequence of as many finite numbers as its
        response has tokens."""
        return replace(self, tokens=token_arrays(values, "the advantages of its tokens"))

    def of_tokens(self, row: int, length: int) -> FloatArray:
        """[length] the advantages of a row's response tokens, as the update uses them."""
        if self.tokens is None:
            return np.full(length, self.advantage[row])
        each: FloatArray = self.tokens[row]
        return each if self.weight is None else self.weight[row] * each

    def members(self, row: int) -> IntArray:
        """The rows of the group of `row`, ascending; none for padding."""
        return np.flatnonzero((self.group == self.group[row]) & (self.group >= 0))

    def scatter(self, rows: IntArray, n: int) -> "AdvantageResult":
        """The same result for a table of n rows, where the present rows are `rows` and all others are padding."""

        def spread(values: Any, fill: Any) -> Any:
            out = fill if isinstance(fill, np.ndarray) else np.full(n, fill)
            out[rows] = values
            return out

        fills = {"ret": 0.0, "reward": 0.0, "baseline": 0.0, "scale": 1.0, "group": -1, "sample": -1}
        return replace(
            self,
            **{name: spread(getattr(self, name), fill) for name, fill in fills.items()},
            stages=tuple((what, spread(values, 0.0)) for what, values in self.stages),
            also=tuple((what, spread(ids, -1)) for what, ids in self.also),
            target=None if self.target is None else spread(self.target, 0.0),
            weight=None if self.weight is None else spread(self.weight, 1.0),
            tokens=None if self.tokens is None else spread(self.tokens, token_arrays([()] * n, "")),
        )

    def beside(self, rows: IntArray, reward: FloatArray) -> "AdvantageResult":
        """The same result for all rows that have a `reward` [n]; those that are not `rows` are not compared: R is the
        reward, the advantage 0."""
        n = len(reward)
        if len(rows) == n:
            return self
        found, left = self.scatter(rows, n), np.ones(n, dtype=np.bool_)
        left[rows] = False
        alone = np.arange(int(left.sum()))
        for values in (found.ret, found.reward, found.baseline, *(each for _, each in found.stages)):
            values[left] = reward[left]
        for ids in (found.group, found.sample):
            ids[left] = alone + ids.max(initial=-1) + 1
        return found


def agent_statistics(table: RowTable, result: AdvantageResult) -> dict[str, dict[str, float]]:
    """Agent -> its metrics in a batch, whether or not agents share a policy; spawned agents are one with their role.
    Padding rows are excluded.

    Failed episodes have no rows and are not counted.

        rows, groups                      rows of this agent, groups that contain at least one of them
        zero_variance, singles            share of these groups with two or more samples, all of the same return (no
                                          learning signal), and with one sample only; computed over all rows of a group,
                                          including those of other agents. A baseline of an episode `outside` of the
                                          group is one of its samples
        reward, reward/COMPONENT          mean over its rows; of a component, over the rows that have it
        advantage_mean, advantage_std     mean and population std of the advantages
        response_length                   mean tokens of a response
        invalid                           share of actions that the workflow marked as invalid
        credit/useful, idle, harmful      shares of the rows with a signed credit ("credit", else "mc") above, equal to
                                          and below zero; omitted without such a credit
    """
    rows = np.flatnonzero(result.group >= 0)
    group, agent = result.group[rows], table.role.codes[rows]
    low, high = extremes((result.ret - result.baseline if result.outside else result.ret)[rows], group)
    first_of_sample = np.unique(result.sample[rows], return_index=True)[1]
    samples = np.bincount(group[first_of_sample], minlength=len(low)) + result.outside
    single, flat = samples == 1, (samples > 1) & (low == high) & ((low == 0) | (not result.outside))
    statistics = {}
    for code in np.unique(agent):
        mine, groups = rows[agent == code], np.unique(group[agent == code])
        having = {name: mine[present[mine]] for name, present in table.present.items() if present[mine].any()}
        values = {
            "rows": len(mine),
            "groups": len(groups),
            "zero_variance": flat[groups].mean(),
            "singles": single[groups].mean(),
            "reward": result.reward[mine].mean(),
            **{f"reward/{name}": table.rewards[name][those].mean() for name, those in having.items()},
            "advantage_mean": result.advantage[mine].mean(),
            "advantage_std": result.advantage[mine].std(),
            "response_length": table.length[mine].mean(),
            "invalid": table.invalid[mine].mean(),
        }
        if signed := [name for name in ("credit", "mc") if name in having]:
            credit = table.rewards[signed[0]][having[signed[0]]]
            shares = {"useful": credit > 0, "idle": credit == 0, "harmful": credit < 0}
            values |= {f"credit/{name}": share.mean() for name, share in shares.items()}
        statistics[table.role.names[code]] = {name: float(value) for name, value in values.items()}
    return statistics
