"""Algorithms to compare with, each with its parts, the equation, and a straight-line reference function, which takes
plain rows (`RowTable.from_rows`) and returns advantages. A test compares both on random rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from marl_verl.algo.advantage.columns import FloatArray, combine, group_mean
from marl_verl.algo.advantage.compare import Mean, Scale, Unbiased, compare
from marl_verl.algo.advantage.estimator import Advantage, AdvantageResult, Estimator, Rows
from marl_verl.algo.advantage.rows import BATCH, TASK, Group, RowTable, group_ids, sample_ids
from marl_verl.algo.algorithms import Algorithm, PlainRows, in_groups, rewards_of
from marl_verl.algo.credit import TAKEN
from marl_verl.errors import MarlError
from marl_verl.options import Share, Small
from marl_verl_baselines.credits import Mode, StepGroups
from marl_verl_baselines.returns import GAE

GRPO_TRAJECTORY_MEAN = Algorithm(advantage=Advantage(sample="session_mean", group=TASK, singleton="raw"))
"""A = (r_episode - mean_uid) / (std_uid + 1e-6), the same for every row of an episode.

Compared: whole episodes of one task. An episode's reward is the mean over its rows and counts once, independent of the
number of turns. Agents and turns are not distinguished. Source: the global baseline of Dr. MAS's code, arXiv
2602.08847.
"""

REINFORCE_PP = Algorithm(advantage=Advantage(group=BATCH, eps=1e-8, singleton="zero"))
"""A = (r - mean_batch) / (std_batch + 1e-8).

Compared: every row with every row of the batch, over tasks, agents and turns. Source: REINFORCE++, arXiv 2501.03262.
verl's `reinforce_plus_plus` whitens over tokens, so that a long response weighs more; in this package a row is one
sample. The two agree if all responses have the same length.
"""

IPPO = Algorithm(advantage=Advantage(returns=GAE(critic="policy"), group=("agent",), eps=1e-8, singleton="raw"))
"""A = (GAE - mean_agent) / (std_agent + 1e-8).

Compared: a turn with the value that the policy's critic predicted for its observation; then normalised over all rows of
the agent in the batch. Nothing is compared within a task, so that one episode per task is enough. Source: IPPO, arXiv
2011.09533; GAE, arXiv 1506.02438.
"""

MAPPO = Algorithm(advantage=Advantage(returns=GAE(critic="team"), group=("agent",), eps=1e-8, singleton="raw"))
"""A = (GAE - mean_agent) / (std_agent + 1e-8), the critic's V of the joint observation.

Compared: a turn with the value that the team's critic predicted for the joint observation of all agents so far. Source:
MAPPO, arXiv 2103.01955.
"""


def grpo_trajectory_mean(rows: PlainRows) -> list[float]:
    sessions: dict[Any, list[float]] = {}
    for row, reward in zip(rows, rewards_of(rows), strict=True):
        sessions.setdefault((row["uid"], row["session"]), []).append(reward)
    means = [float(np.mean(rewards)) for rewards in sessions.values()]
    advantages = in_groups(means, [{"uid": uid} for uid, _ in sessions], ["uid"], raw=True)
    of = dict(zip(sessions, advantages, strict=True))
    return [of[row["uid"], row["session"]] for row in rows]


def reinforce_pp(rows: PlainRows) -> list[float]:
    return in_groups(rewards_of(rows), rows, [], eps=1e-8)


def gae(rows: PlainRows, gamma: float = 1.0, lam: float = 0.95) -> list[float]:
    """Backwards over each agent's turns in a session: delta = r + gamma V' - V, A = delta + gamma lam A'."""
    rewards, advantages = rewards_of(rows), np.zeros(len(rows))
    following: dict[Any, tuple[float, float]] = {}  # V and A of the agent's next turn
    for i in sorted(range(len(rows)), key=lambda i: -rows[i]["index"]):
        key = (rows[i]["uid"], rows[i]["session"], rows[i]["agent"])
        value, advantage = following.get(key, (0.0, 0.0))
        delta = rewards[i] + gamma * value - rows[i]["value"]
        advantages[i] = delta + gamma * lam * advantage
        following[key] = rows[i]["value"], advantages[i]
    return list(map(float, advantages))


def ippo(rows: PlainRows) -> list[float]:
    return in_groups(gae(rows), rows, ["agent"], eps=1e-8, raw=True)


@dataclass(frozen=True)
class Greedy(Estimator):
    """A = r - r_greedy: the reward of a row minus that of its agent in the greedy episode of the task.

    Source: ReMax, arXiv 2310.10505, verl's `compute_remax_outcome_advantage`.
    """

    def incompatibility(self, rows: Rows) -> str | None:
        return None if rows.greedy else "it needs a greedy episode of each task: use sampler 'greedy-baseline'"

    def compute(self, table: RowTable, reward: FloatArray) -> AdvantageResult:
        baseline, rows = table.column("greedy"), np.arange(len(table))
        scale, group = np.ones(len(table)), group_ids(table, TASK)
        return AdvantageResult(reward, reward, baseline, scale, group, rows, TASK)


REMAX = Algorithm(sampler="greedy-baseline", advantage=Greedy())
"""A = r - r_greedy. One sampled episode per task is enough. See `Greedy`."""


def remax(rows: PlainRows) -> list[float]:
    return [reward - row["columns"]["greedy"] for row, reward in zip(rows, rewards_of(rows), strict=True)]


@dataclass(frozen=True)
class Decoupled(Estimator):
    """A = whiten(sum_k w_k (r_k - mean r_k) / (std r_k + eps)), mean and std of component k over the group.

    `whiten` subtracts the mean and divides by sqrt(variance + 1e-8), both over the response tokens of all rows of the
    policy, so that a long response weighs more. Source: GDPO, arXiv 2601.05242, verl's
    `compute_gdpo_outcome_advantage`.
    """

    no_tree: ClassVar[str | None] = "its components are those of whole episodes, and a tree is a single session"
    keys: tuple[str, ...] = ("team",)  # others than `team`, `role` and those of `Mix` are parts of the task's score
    key_weights: tuple[float, ...] | None = None  # w, one per key; None: all are 1
    group: Group = TASK
    norm_by_std: bool = True
    eps: Small = 1e-6

    def __post_init__(self) -> None:
        if not self.keys or (self.key_weights is not None and len(self.key_weights) != len(self.keys)):
            raise MarlError(f"'keys' {self.keys} need a number each in 'key_weights', got {self.key_weights}")

    def score_parts(self) -> tuple[str, ...]:
        return tuple(key for key in self.keys if key not in TAKEN)

    def consumed(self) -> tuple[str, ...]:
        return self.score_parts()

    def compute(self, table: RowTable, reward: FloatArray) -> AdvantageResult:
        group, total, stages = group_ids(table, self.group), np.zeros(len(table)), []
        std = Unbiased() if self.norm_by_std else None
        for key, weight in zip(self.keys, self.key_weights or np.ones(len(self.keys)), strict=True):
            value = table.component(key)
            baseline, scale = compare(value, group, Mean(), std, self.eps, "raw")
            stages.append((f"advantage of {key}", (value - baseline) / scale))
            total = total + weight * stages[-1][1]
        stages.append(("weighted sum", total))
        policy = combine([table.policy.codes], len(table))
        tokens = np.bincount(policy, weights=table.length)
        mean = np.bincount(policy, weights=table.length * total) / np.maximum(tokens, 1)
        squares = np.bincount(policy, weights=table.length * (total - mean[policy]) ** 2)
        scale = np.sqrt(squares / np.maximum(tokens - 1, 1) + 1e-8)
        rows = np.arange(len(table))
        return AdvantageResult(total, reward, mean[policy], scale[policy], group, rows, self.group, stages)


GDPO = Algorithm(advantage=Decoupled())
"""Each of `keys` normalised over the rows of a task, then summed and whitened over the policy's tokens."""


def gdpo(rows: PlainRows, keys: Sequence[str] = ("team",), weights: Sequence[float] = (1.0,)) -> list[float]:
    parts = [in_groups([row["rewards"][key] for row in rows], rows, ["uid"], raw=True) for key in keys]
    totals = np.array(weights) @ np.array(parts)
    advantages = []
    for row, total in zip(rows, totals, strict=True):
        mine = [i for i, other in enumerate(rows) if other.get("policy") == row.get("policy")]
        tokens = np.repeat(totals[mine], [rows[i]["length"] for i in mine])
        variance = tokens.var(ddof=1) if len(tokens) > 1 else 0.0
        advantages.append(float((total - tokens.mean()) / np.sqrt(variance + 1e-8)))
    return advantages


@dataclass(frozen=True)
class GroupInGroup(Estimator):
    """A = A_episode + step_w * A_step.

    A_episode = E - mean E (mode "mean_norm") or (E - mean E) / (std E + eps) ("mean_std_norm") over the episodes of a
    task; E is the mixed reward, the same on all rows of an episode. A_step does the same with the discounted step
    returns S among rows of the group with identical observation. In `AdvantageResult`, ret and baseline are the sums of
    the two levels, each in units of its scale, so that scale is 1. Source: GiGPO, arXiv 2505.10978, equations 3 to 9.
    """

    one_side: ClassVar[str | None] = "it sums the steps of all agents"
    no_tree: ClassVar[str | None] = "it compares sessions, and a tree is a single session"
    group: Group = TASK
    mode: Mode = "mean_norm"
    step_w: float = 1.0
    gamma: Share = 0.95
    group_by_agent: bool = False  # groups of an agent of the episode group, and every row is a sample
    step: str = "step"  # component with the reward of the environment's step; excluded from E
    std: Scale = Unbiased()
    eps: Small = 1e-6
    episode_singleton: Literal["zero", "raw"] = "raw"  # advantage of a group of one
    step_singleton: Literal["zero", "raw"] = "zero"

    def consumed(self) -> tuple[str, ...]:
        return (self.step,)

    def compute(self, table: RowTable, reward: FloatArray) -> AdvantageResult:
        columns = (*self.group, "agent") if self.group_by_agent else self.group
        group = group_ids(table, columns)
        sample = sample_ids(table, group, "row" if self.group_by_agent else "session_mean")
        table.check_shared(reward, sample, "of one session, whose episode reward")
        _, first = np.unique(sample, return_index=True)
        episode = group_mean(reward, sample)
        std = self.std if self.mode == "mean_std_norm" else None
        upper, upper_scale = compare(episode, group[first], Mean(), std, self.eps, self.episode_singleton)
        options = self.step, self.gamma, columns, self.mode, self.std, self.eps, self.step_singleton
        steps, lower, lower_scale = StepGroups(*options).compared(table)
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


REFERENCES: dict[str, Callable[..., list[float]]] = {"ippo": ippo, "mappo": ippo}  # with values of another critic
REFERENCES |= {"grpo-trajectory-mean": grpo_trajectory_mean, "reinforce++": reinforce_pp}
REFERENCES |= {"remax": remax, "gdpo": gdpo, "gigpo": gigpo}
