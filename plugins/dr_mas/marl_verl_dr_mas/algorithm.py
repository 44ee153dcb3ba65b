"""Dr. MAS (arXiv 2602.08847): advantages are normalised per agent."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge

from marl_verl.algo.advantage import AGENT, Advantage, FloatArray, RowTable
from marl_verl.algo.algorithms import Algorithm, PlainRows, in_groups, rewards_of
from marl_verl.algo.rewards import Mix
from marl_verl_dr_mas.amplification import Amplification


@dataclass(frozen=True)
class PenaltyMix(Mix):
    """s = sum over components r_i w_i - c * [action invalid]. Source: Dr. MAS, arXiv 2602.08847."""

    name: ClassVar[str] = "penalty"
    penalty: Annotated[float, Ge(0)] = 0.1  # c: the paper's settings are 0.1 for mathematics and 0.01 for search

    def __post_init__(self) -> None:
        super().__init__(self.weights)  # checks them

    def compute(self, table: RowTable) -> FloatArray:
        return super().compute(table) - self.penalty * table.invalid


DR_MAS = Algorithm(
    sampler="independent",
    rewards=PenaltyMix(penalty=0.1),
    advantage=Advantage(sample="row", group=AGENT, singleton="raw"),
    loss="ppo-clip",
    metrics=(Amplification(),),
)
"""A = (s - mean_k) / (std_k + 1e-6), mean and std over all rows of agent k in the task.

Compared: all actions of the same agent in the task, at any turn; every call of an agent is one sample. With one mean
and std for all agents, eq. (2), the second moment of agent k's gradient is scaled by
(std_k^2 + (mean_k - mean)^2) / std^2, which grows as agents specialise (metric `amplification`); with per-agent ones,
eq. (5), the factor is 1. Source: Dr. MAS, arXiv 2602.08847, section 4, and the authors' code.
"""


def dr_mas(rows: PlainRows) -> list[float]:
    scores = [reward - 0.1 * row["invalid"] for row, reward in zip(rows, rewards_of(rows), strict=True)]
    return in_groups(scores, rows, ["uid", "agent"], raw=True)


REFERENCES = {"dr-mas": dr_mas}
