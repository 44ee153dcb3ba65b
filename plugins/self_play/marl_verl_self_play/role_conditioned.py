"""Role-conditioned advantage estimation (RAE): a moving-average baseline for each role, kept between steps."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Interval

from marl_verl.algo.advantage import (
    AdvantageResult,
    FloatArray,
    GroupEstimator,
    Immediate,
    IntArray,
    Memory,
    Returns,
    RowTable,
    combine,
    group_ids,
    group_mean,
)

BASELINE = "rae_baseline"
"""The column of b, which training computes from earlier steps and `marl-verl explain` shows."""


@dataclass(frozen=True)
class RoleConditioned(GroupEstimator):
    """A(tau, p) = R(tau, p) - b_p, a baseline of its own for each role p of the game.

    For each episode tau, in the order of the tasks, and each role p that acted in it, first the baseline is updated,
    then the advantage is computed:

        b_p <- alpha * b_p + (1 - alpha) * R(tau, p)
        A(tau, p) = R(tau, p) - b_p

    b_p begins at 0. R(tau, p) is the mean of the returns of the role's turns; with the outcome of its side as the only
    reward, that outcome. All turns of the role in the episode have its advantage. In a two-player game one policy that
    plays all roles would otherwise compare a second player with first players, who have another value. The baselines
    are a part of checkpoints. If the returns of an episode's roles add up to 0 and every role acts in every episode,
    the advantages of an episode add up to 0, too.

    Source: SPIRAL, arXiv 2506.24119 (role-conditioned advantage estimation), with alpha 0.95, of one game.
    """

    name: ClassVar[str] = "role-conditioned"
    returns: Returns = Immediate()
    alpha: Annotated[float, Interval(ge=0, lt=1)] = 0.95  # share of the old baseline that is kept
    role: tuple[str, ...] = ("agent",)  # not `group`, which an option of the algorithm's own advantage would set

    @property
    def group(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.role

    @property
    def remembers(self) -> bool:
        return True

    def recall(self, table: RowTable, reward: FloatArray, memory: Memory) -> tuple[Mapping[str, FloatArray], Memory]:
        """The column `BASELINE`; and the memory: role -> b."""
        ret = self.returns.compute(table, reward)
        sample = self._samples(table)
        mean, (_, first) = group_mean(ret, sample), np.unique(sample, return_index=True)
        baselines, b = dict(memory), np.empty(len(first))
        for at in np.argsort(first, kind="stable"):  # samples by their first row: by task, session and first act
            role = "/".join(str(table.value(column, int(first[at]))) for column in self.group)
            b[at] = self.alpha * baselines.get(role, 0.0) + (1 - self.alpha) * mean[at]
            baselines[role] = float(b[at])
        return {BASELINE: b[sample]}, baselines

    def compute(self, table: RowTable, reward: FloatArray) -> AdvantageResult:
        """See `Estimator.compute`. Rows without the column `BASELINE` are those of a first step."""
        known = BASELINE in table.numbers
        baseline = table.column(BASELINE) if known else self.recall(table, reward, {})[0][BASELINE]
        stages = self.returns.stages(table, reward)
        sample = self._samples(table)
        ret = group_mean(stages[-1][1], sample)[sample]
        group, ones = group_ids(table, self.group), np.ones(len(table))
        return AdvantageResult(ret, reward, baseline, ones, group, sample, self.group, stages)

    def _samples(self, table: RowTable) -> IntArray:
        """[n] ids of (role, episode)."""
        return combine([group_ids(table, self.group), table.uid.codes, table.session], len(table))
