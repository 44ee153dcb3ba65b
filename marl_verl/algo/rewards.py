"""Mixes, which combine the reward components of a row into its reward; and a role reward for any team."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_verl.algo.advantage.columns import FloatArray
from marl_verl.algo.advantage.rows import RowTable
from marl_verl.episode import Episode, Turn
from marl_verl.episode.communication import AMOUNTS
from marl_verl.errors import MarlError, shown
from marl_verl.options import Part, check_type
from marl_verl.tasks import Task, quick
from marl_verl.team import AgentConfig

__all__ = ["Mix", "RewardMix"]


class RewardMix(Part):
    """Combines the reward components of a row."""

    kind: ClassVar[str] = "reward mix"

    def components(self, agents: Mapping[str, AgentConfig]) -> frozenset[str]:
        """The reward components that are set while sampling a team with this mix."""
        role = ("role",) if any(agent.reward for agent in agents.values()) else ()
        return frozenset(("team", *role, *self.required()))

    def required(self) -> tuple[str, ...]:
        """Components that are computed only if a mix requires them: `AMOUNTS`."""
        return ()

    @abstractmethod
    def compute(self, table: RowTable) -> FloatArray:
        """Reward per row, [n]."""


@dataclass(frozen=True, init=False)
class Mix(RewardMix):
    """r = sum over components c of w_c * r_c.

    `Mix(team=1.0, role=0.5)` names its components. An agent that has one on none of its rows gets 0 for it (an agent
    without a role reward). MarlError for a component that no row has and the run does not declare, and for one, other
    than `tool`, that an agent has on some of its rows only: these rows would be rewarded by different rules.

    `Mix()` sums all components of a row, without those that another part consumes. MarlError for a row without any.

    Attributes:
        weights: component -> weight; None: the sum.
    """

    name: ClassVar[str] = "weights"
    weights: Mapping[str, float] | None = None

    def __init__(self, weights: Mapping[str, float] | None = None, **components: float) -> None:
        chosen = {**(weights or {}), **components} or None
        for name, weight in (chosen or {}).items():
            check_type(weight, float, f"weights.{name}")
        object.__setattr__(self, "weights", chosen)

    def required(self) -> tuple[str, ...]:
        return tuple(name for name in AMOUNTS if name in (self.weights or ()))

    def compute(self, table: RowTable) -> FloatArray:
        reward = np.zeros(len(table))
        if self.weights is None:
            names = sorted(table.rewards.keys() - table.own)
            table.check(np.any([table.present[name] for name in names], axis=0), "has no reward component")
            return sum((table.rewards[name] for name in names), reward)
        for name, weight in sorted(self.weights.items()):
            present = table.having(name)
            if name != "tool":  # 0 without a call, as in SHARP
                table.check_roles(present, f"reward '{name}'")
            reward += weight * table.rewards.get(name, 0.0)
        return reward


@quick
def valid_answer(task: Task, turn: Turn, episode: Episode) -> float:
    """Role reward: r = 1 if the action has text and was not cut off at the length limit, else 0."""
    return float(bool(turn.action.text.strip()) and turn.action.stop_reason != "length")


@quick
def legal_move(task: Task, turn: Turn, episode: Episode) -> float:
    """Role reward: r = 1 if the workflow could use the action, 0 if it marked it as invalid."""
    return float(turn.invalid is None)


@quick
def returned(task: Task, turn: Turn, episode: Episode) -> float:
    """Role reward that the workflow returns with its answer: `{"text": "4", "rewards": {"solver": 0.5}}`; of an
    agent that `rewards` does not name, that of its role, or 0. MarlError without the mapping."""
    rewards = episode.answer.get("rewards") if isinstance(episode.answer, Mapping) else None
    if not isinstance(rewards, Mapping):
        raise MarlError(f"role reward 'returned' needs an answer with a mapping 'rewards', got {shown(episode.answer)}")
    return float(rewards.get(turn.agent, rewards.get(turn.role, 0.0)))
