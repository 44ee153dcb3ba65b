"""GiGPO's step groups: a step against other steps that were taken from the same observation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from marl_verl.advantage.baselines import Mean
from marl_verl.advantage.groups import combine, group_ids
from marl_verl.advantage.normalise import Compared, Scale, check_eps, treat_singletons
from marl_verl.advantage.part import PartField
from marl_verl.advantage.returns import check_gamma, sum_to_go
from marl_verl.advantage.rows import FloatArray, IntArray, RowTable, check_shared
from marl_verl.credit.table import TableCredit
from marl_verl.errors import MarlError

Mode = Literal["mean_norm", "mean_std_norm"]


@dataclass(frozen=True)
class StepGroups(TableCredit):
    """credit = S - mean of S over rows with the same observation (or that over std + eps); S as in `step_returns`.

    Source: GiGPO, arXiv 2505.10978, equations 6 to 8.

    Attributes:
        step: component with the reward of the environment's step.
        gamma: discount in S.
        group: rows are compared within it where they have the same `obs`.
        mode: "mean_norm" subtracts the mean, "mean_std_norm" divides by std + eps too.
        singleton: what an observation that occurs once gets: "zero" or "raw".
    """

    name: ClassVar[str] = "step-groups"
    step: str = "step"
    gamma: float = 0.95
    group: PartField[tuple[str, ...]] = PartField("groups", "task")
    mode: Mode = "mean_norm"
    std: PartField[Scale] = PartField("scales", "unbiased")
    eps: float = 1e-6
    singleton: Literal["zero", "raw"] = "zero"

    def __post_init__(self) -> None:
        check_gamma(self.gamma)
        check_eps(self.eps)
        object.__setattr__(self, "group", tuple(self.group))

    def misfit(self, branches: bool) -> str | None:
        return "it adds up the turns of a session, and a tree has siblings" if branches else None

    def reads(self) -> tuple[str, ...]:
        return (self.step,)

    def compute(self, table: RowTable) -> FloatArray:
        """MarlError for rows without the component or the column `obs`."""
        value = step_returns(table, self.step, self.gamma)
        compared = within(value, same_observation(table, self.group), self.mode, self.std, self.eps, self.singleton)
        return (value - compared.baseline) / compared.scale


def step_returns(table: RowTable, step: str, gamma: float) -> FloatArray:
    """[n] S_t = sum_{k >= t} gamma^(k - t) step_k over the session's turns; a turn of several agents counts once."""
    reward = table.component(step)
    turns = combine([table.uid.codes, table.session, table.turn], len(table))
    check_shared(table, reward, turns, "one turn of the environment")
    _, first = np.unique(turns, return_index=True)
    sessions = combine([table.uid.codes[first], table.session[first]], len(first))
    return sum_to_go(reward[first], sessions, gamma, step=table.turn[first])[turns]


def same_observation(table: RowTable, group: tuple[str, ...]) -> IntArray:
    """[n] ids of rows that share group and observation. MarlError if a row has no observation."""
    if "obs" not in table.extra:
        raise MarlError("step groups need the column 'obs', which names the observation of each row")
    if (lacking := table.codes("obs") < 0).any():
        raise MarlError(f"row '{table.key(int(np.argmax(lacking)))}' has no 'obs', which step groups need")
    return group_ids(table, (*group, "obs"))


def within(value: FloatArray, group: IntArray, mode: Mode, std: Scale, eps: float, singleton: str) -> Compared:
    """Baseline and scale of each value [n] in its group: the mean, and 1 or std + eps."""
    scaled = mode == "mean_std_norm"
    scale = std.compute(value, group)[group] + eps if scaled else np.ones(len(value))
    compared = Compared(Mean().compute(value, group), np.where(scale > 0, scale, 1.0))
    return treat_singletons(compared, value, group, compared, singleton, 1.0 + eps if scaled else 1.0)
