"""AT-GRPO (arXiv 2510.11062): candidates for one act are compared, and the best is the next state."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from marl_verl.algo.advantage import TURN, FloatArray, RowTable
from marl_verl.algo.algorithms import Algorithm, PlainRows, in_groups, rewards_of
from marl_verl.algo.rewards import Mix, RewardMix
from marl_verl_at_grpo.filtered import FilteredAdvantage
from marl_verl_at_grpo.metrics import Chosen, Turns


@dataclass(frozen=True)
class AlphaMix(RewardMix):
    """r = alpha * team + role; with alpha None, r = sum of the components.

    Source: AT-GRPO, arXiv 2510.11062: team reward and role reward, mixed by alpha.

    Attributes:
        alpha: weight of the team reward. Use None for teams without role rewards.
    """

    name: ClassVar[str] = "alpha"
    alpha: float | None = None

    def compute(self, table: RowTable) -> FloatArray:
        return (Mix() if self.alpha is None else Mix(team=self.alpha, role=1.0)).compute(table)


AT_GRPO = Algorithm(
    sampler="greedy-tree",
    rewards=AlphaMix(alpha=None),
    advantage=FilteredAdvantage(sample="row", group=TURN, singleton="zero"),
    loss="ppo-clip",
    metrics=(Turns(), Chosen()),
)
"""A = (r - mean_g) / (std_g + 1e-6), g = rows of the same task, turn and agent; r = alpha * team + role.

Compared: the agent's candidates for one act, sampled from one shared state; the best leads to the state that the next
agent sees. Source: AT-GRPO, arXiv 2510.11062. With alpha None the components are summed instead, for teams
without role rewards.
"""

AT_GRPO_SESSIONS = dataclasses.replace(AT_GRPO, sampler="independent")
"""A = (r - mean_g) / (std_g + 1e-6), g = rows of the same task, turn and agent.

Compared: the same agent's actions at the same turn of the task's other episodes. AT-GRPO's groups without its tree.
"""


def at_grpo(rows: PlainRows) -> list[float]:
    return in_groups(rewards_of(rows), rows, ["uid", "turn", "agent", "slot"])


REFERENCES = {"at-grpo": at_grpo, "at-grpo-sessions": at_grpo}
