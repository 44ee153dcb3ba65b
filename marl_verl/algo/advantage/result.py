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
    """Per row [n], float64: advantage = weight * (ret - baseline) / scale."""

    ret: FloatArray  # the return that was compared: the session's mean if a session counts once
    reward: FloatArray  # of the row, after the mix
    baseline: FloatArray
    scale: FloatArray
    group: IntArray  # ids 0..G-1; a row of an untrained agent is alone in its group
    sample: IntArray  # ids; rows of one sample count once
    group_by: tuple[str, ...]  # the columns that define a group
    stages: Sequence[tuple[str, FloatArray]] = ()  # from reward to return: (name of the step, values after it)
    target: FloatArray | None = None  # value target of the critic, if the returns need one
    weight: FloatArray | None = None  # factor of each advantage, see `weighted`; None: all are 1
    # an advantage per response token [length], before the weight, which the update uses in place of the row's;
    # statistics use that of the row; see `with_tokens`
    tokens: TokenArray | None = None

    @functools.cached_property
    def advantage(self) -> FloatArray:
        """[n] weight * (ret - baseline) / scale."""
        advantage: FloatArray = (self.ret - self.baseline) / self.scale
        return advantage if self.weight is None else self.weight * advantage

    def weighted(self, weight: FloatArray) -> "AdvantageResult":
        """The result with each advantage multiplied by a weight [n], finite and at least 0; weights multiply."""
        return replace(self, weight=weight if self.weight is None else self.weight * weight)

    def with_tokens(self, values: Sequence[Any]) -> "AdvantageResult":
        """The result with a finite advantage per response token: a sequence for each row."""
        return replace(self, tokens=token_arrays(values))

    def of_tokens(self, row: int, length: int) -> FloatArray:
        """[length] the advantages of a row's response tokens, as the update uses them."""
        if self.tokens is None:
            return np.full(length, self.advantage[row])
        tokens: FloatArray = self.tokens[row]
        return tokens if self.weight is None else self.weight[row] * tokens

    def members(self, row: int) -> IntArray:
        """The rows of the group of `row`, ascending."""
        return np.flatnonzero(self.group == self.group[row])

    def spread(self, rows: IntArray, reward: FloatArray) -> "AdvantageResult":
        """The same result for a table of n rows with a `reward` [n], of which those in `rows` were compared; each other
        one is alone in its group: R is the reward, the advantage 0."""
        n = len(reward)
        others = np.delete(np.arange(n), rows)

        def column(values: Any, fill: Any, dtype: Any = np.float64) -> Any:
            spread = np.empty(n, dtype=dtype)
            spread[rows], spread[others] = values, fill
            return spread

        def ids(values: IntArray) -> Any:
            return column(values, np.arange(len(others)) + np.max(values) + 1, np.int64)

        return replace(
            self,
            **{name: column(getattr(self, name), reward[others]) for name in ("ret", "baseline")},
            **{"reward": reward, "scale": column(self.scale, 1.0)},
            **{"group": ids(self.group), "sample": ids(self.sample)},
            stages=tuple((name, column(values, reward[others])) for name, values in self.stages),
            target=None if self.target is None else column(self.target, 0.0),
            weight=None if self.weight is None else column(self.weight, 1.0),
            tokens=None if self.tokens is None else column(self.tokens, token_arrays([None] * len(others)), object),
        )


def agent_statistics(table: RowTable, result: AdvantageResult) -> dict[str, dict[str, float]]:
    """Agent -> its metrics in a batch, whether or not agents share a policy; spawned agents are one with their role.

    Failed episodes have no rows and are not counted.

        rows, groups                      rows of this agent, groups that contain at least one of them
        zero_variance, singles            share of these groups with two or more samples, all of the same return (no
                                          learning signal), and with one sample only; computed over all rows of a group,
                                          including those of other agents
        reward, reward/COMPONENT          mean over its rows; of a component, over the rows that have it
        advantage_mean, advantage_std     mean and population std of the advantages
        response_length                   mean tokens of a response
        invalid                           share of actions that the workflow marked as invalid
    """
    group, agent = result.group, table.role.codes
    low, high = extremes(result.ret, group)
    samples = np.bincount(group[np.unique(result.sample, return_index=True)[1]])
    single, flat = samples == 1, (samples > 1) & (low == high)
    statistics = {}
    for code in np.unique(agent):
        rows = np.flatnonzero(agent == code)
        groups = np.unique(group[rows])
        having = {name: rows[present[rows]] for name, present in table.present.items() if present[rows].any()}
        values = {
            "rows": len(rows),
            "groups": len(groups),
            "zero_variance": flat[groups].mean(),
            "singles": single[groups].mean(),
            "reward": result.reward[rows].mean(),
            **{f"reward/{name}": table.rewards[name][rows_of].mean() for name, rows_of in having.items()},
            "advantage_mean": result.advantage[rows].mean(),
            "advantage_std": result.advantage[rows].std(),
            "response_length": table.length[rows].mean(),
            "invalid": table.invalid[rows].mean(),
        }
        statistics[table.role.names[code]] = {name: float(value) for name, value in values.items()}
    return statistics
