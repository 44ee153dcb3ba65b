"""`Advantage`: returns, groups and normalisation, composed by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from marl_verl.advantage.groups import SAMPLES, group_ids, sample_ids
from marl_verl.advantage.normalise import SINGLETONS, STDS, baseline_and_scale, group_mean
from marl_verl.advantage.result import Advantages
from marl_verl.advantage.returns import RETURNS
from marl_verl.advantage.rows import FloatArray, RowTable
from marl_verl.errors import MarlError, unknown


class Estimator(Protocol):
    """What turns rewards into advantages. A frozen dataclass, whose fields are its options."""

    def compute(self, table: RowTable, reward: FloatArray) -> Advantages:
        """One advantage per row. `table` has no padding and is sorted by key; `reward` [n] is finite."""
        ...


@dataclass(frozen=True)
class Advantage:
    """A = (R - mean_group R) / (std_group R + eps): a row against the rows of its group.

    Attributes (names as in the golden files, which come from the papers' own code):
        returns: how a reward becomes a return: "immediate".
        sample: "row": every row counts once. "session_mean": the rows of one session in a group count once, with the
            mean of their returns, and all get its advantage; otherwise a long episode would outweigh a short one in
            mean and std.
        group: the columns in which the rows of a group agree, e.g. ("uid", "turn", "agent"); () is the whole batch.
        norm_by_std: divide by std + eps; off: A = R - mean.
        std: "unbiased" (n - 1) or "population" (n).
        eps: added to the std.
        singleton: what a group of one sample gets: "zero", "raw" or "batch" (see `normalise.baseline_and_scale`).

    Raises:
        MarlError: a part that does not exist (the nearest is offered), or a negative eps.
    """

    returns: str = "immediate"
    sample: str = "row"
    group: tuple[str, ...] = ("uid",)
    norm_by_std: bool = True
    std: str = "unbiased"
    eps: float = 1e-6
    singleton: str = "zero"

    def __post_init__(self) -> None:
        for option, value, valid in (
            ("returns", self.returns, RETURNS),
            ("sample", self.sample, SAMPLES),
            ("std", self.std, STDS),
            ("singleton policy", self.singleton, SINGLETONS),
        ):
            if value not in valid:
                raise unknown(option, value, valid)
        for column in self.group:
            if not isinstance(column, str):
                raise MarlError(f"'group' is a list of columns, got {column!r} in it")
        if self.eps < 0:
            raise MarlError(f"'eps' must be >= 0, got {self.eps}")
        object.__setattr__(self, "group", tuple(self.group))  # config has lists

    def compute(self, table: RowTable, reward: FloatArray) -> Advantages:
        """See `Estimator.compute`. MarlError (nearest offered) for a group column that the table lacks."""
        ret = RETURNS[self.returns](table, reward)
        group = group_ids(table, self.group)
        sample = sample_ids(table, group, self.sample)
        value = group_mean(ret, sample)
        _, first = np.unique(sample, return_index=True)
        baseline, scale = baseline_and_scale(
            value,
            group[first],
            norm_by_std=self.norm_by_std,
            std=self.std,
            eps=self.eps,
            singleton=self.singleton,
        )
        return Advantages.of(
            ret=value[sample],
            reward=reward,
            baseline=baseline[group],
            scale=scale[group],
            group=group,
            sample=sample,
            group_by=self.group,
        )
