"""Groups with a learning signal (`marl.sampler.filter`), as DAPO's dynamic sampling (arXiv 2503.14476, section 3.2).

A group teaches if the advantage of one of its rows is not 0, i.e. A_i = (R_i - b) / (sigma + eps) != 0 for some i of a
trained policy. Groups are those that the algorithm declares: of a task, a turn, siblings of a tree. With a mean as
baseline, a group without variance does not teach, nor a group of one row with `singleton: zero`. Nor does a group whose
mean reward is not within `above` and `below`, as in MARTI. A task teaches if one of its groups does.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from marl_verl.algo.advantage import AdvantageResult, RowTable
from marl_verl.algo.advantage.columns import group_mean

ZERO = 1e-9
"""An advantage up to this size is the rounding of 0."""


@dataclass(frozen=True)
class Signal:
    """The rows of a batch by whether their group teaches."""

    rows: list[int]  # rows of groups that teach, ascending
    tasks: frozenset[str]  # uids of the tasks that teach
    dropped_groups: int
    dropped_rows: int

    @classmethod
    def of(
        cls,
        table: RowTable,
        result: AdvantageResult,
        trained: Collection[str],
        above: float | None = None,
        below: float | None = None,
    ) -> Signal:
        """The signal of a batch's n rows. Groups without a row of a trained policy are neither used nor dropped."""
        learning = [code for code, name in enumerate(table.policy.names) if name in trained]
        own = np.isin(table.policy.codes, learning) & (result.group >= 0)
        size = [np.abs(result.of_tokens(row, int(n))).max(initial=0) for row, n in enumerate(table.length)]
        _, ids = np.unique(result.group, return_inverse=True)
        mean = group_mean(result.reward, ids)[ids]
        within = (mean > (-np.inf if above is None else above)) & (mean < (np.inf if below is None else below))
        teaching = np.unique(result.group[own & (np.array(size) > ZERO) & within])
        kept = np.isin(result.group, teaching)
        rows = np.flatnonzero(kept)
        groups, tasks = len(np.unique(result.group[own])), np.unique(table.uid.codes[rows])
        uids = frozenset(table.uid.names[task] for task in tasks)
        return cls(rows.tolist(), uids, groups - len(teaching), int((own & ~kept).sum()))

    def metrics(self) -> dict[str, float]:
        """Counts of what is trained on and what is not."""
        counts = {"dropped_groups": self.dropped_groups, "dropped_rows": self.dropped_rows}
        return {f"filter/{name}": float(count) for name, count in {**counts, "useful_tasks": len(self.tasks)}.items()}
