"""GiGPO: compares whole episodes, and steps that started from the same observation."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from marl_verl.algo.advantage.columns import FloatArray, group_mean
from marl_verl.algo.advantage.compare import Mean, Scale, Unbiased, compare
from marl_verl.algo.advantage.estimator import Estimator, Rows
from marl_verl.algo.advantage.groups import TASK, Group, check_shared, group_ids, sample_ids
from marl_verl.algo.advantage.result import AdvantageResult
from marl_verl.algo.advantage.rows import RowTable
from marl_verl.algo.algorithms import Algorithm
from marl_verl.algo.algorithms.reference import PlainRows
from marl_verl.algo.credit.table import Mode, same_observation, step_returns
from marl_verl.options import Share, Small


@dataclass(frozen=True)
class GroupInGroup(Estimator):
    """A = A_episode + step_w * A_step.

    A_episode = E - mean E (mode "mean_norm") or (E - mean E) / (std E + eps) ("mean_std_norm") over the episodes of a
    task; E is the mixed reward, the same on all rows of an episode. A_step does the same with the discounted step
    returns S among rows of the group with identical observation. In `AdvantageResult`, ret and baseline are the sums of
    the two levels, each in units of its scale, so that scale is 1. Source: GiGPO, arXiv 2505.10978, equations 3 to 9.

    Attributes:
        group: columns of the episode group; with `group_by_agent` also the agent, and every row is a sample.
        mode: whether both levels are divided by their std.
        step: component with the reward of the environment's step; excluded from E.
        episode_singleton, step_singleton: advantage of a group of one at each level.
    """

    name: ClassVar[str] = "group-in-group"
    one_side: ClassVar[str | None] = "it sums the steps of all agents"
    group: Group = TASK
    group_by_agent: bool = False
    mode: Mode = "mean_norm"
    step_w: float = 1.0
    gamma: Share = 0.95
    step: str = "step"
    std: Scale = Unbiased()
    eps: Small = 1e-6
    episode_singleton: Literal["zero", "raw"] = "raw"
    step_singleton: Literal["zero", "raw"] = "zero"

    def incompatibility(self, rows: Rows) -> str | None:
        return "it compares sessions, and a tree is a single session" if rows.tree else None

    def consumed(self) -> tuple[str, ...]:
        return (self.step,)

    def compute(self, table: RowTable, reward: FloatArray) -> AdvantageResult:
        columns = (*self.group, "agent") if self.group_by_agent else self.group
        group = group_ids(table, columns)
        sample = sample_ids(table, group, "row" if self.group_by_agent else "session_mean")
        check_shared(table, reward, sample, "of one session, whose episode reward")
        _, first = np.unique(sample, return_index=True)
        episode = group_mean(reward, sample)
        std = self.std if self.mode == "mean_std_norm" else None
        upper, upper_scale = compare(episode, group[first], Mean(), std, self.eps, self.episode_singleton)
        steps, same = step_returns(table, self.step, self.gamma), same_observation(table, columns)
        lower, lower_scale = compare(steps, same, Mean(), std, self.eps, self.step_singleton)
        ret = (episode / upper_scale)[sample] + self.step_w * steps / lower_scale
        baseline = (upper / upper_scale)[sample] + self.step_w * lower / lower_scale
        stages = [
            ("episode return", episode[sample]),
            ("episode advantage", ((episode - upper) / upper_scale)[sample]),
            ("step return", steps),
            ("step advantage", (steps - lower) / lower_scale),
        ]
        return AdvantageResult(ret, reward, baseline, np.ones(len(table)), group, sample, columns, stages)


GIGPO = Algorithm(advantage=GroupInGroup())
"""A = A_episode + A_step: episodes of a task against each other, and steps from one observation against each other."""


def gigpo(rows: PlainRows, gamma: float = 0.95, step_w: float = 1.0) -> list[float]:
    advantages = []
    for row in rows:
        episodes = {o["session"]: o["rewards"]["episode"] for o in rows if o["uid"] == row["uid"]}
        mine = row["rewards"]["episode"]
        upper = mine - float(np.mean(list(episodes.values()))) if len(episodes) > 1 else mine
        steps = [_step_return(o, rows, gamma) for o in rows if (o["uid"], o["obs"]) == (row["uid"], row["obs"])]
        advantages.append(upper + step_w * (_step_return(row, rows, gamma) - float(np.mean(steps))))
    return advantages


def _step_return(row: Mapping[str, Any], rows: PlainRows, gamma: float) -> float:
    session = [o for o in rows if (o["uid"], o["session"]) == (row["uid"], row["session"])]
    later = {o["turn"]: o["rewards"]["step"] for o in session if o["turn"] >= row["turn"]}
    return float(sum(gamma ** (turn - row["turn"]) * reward for turn, reward in later.items()))


REFERENCES = {"gigpo": gigpo}
