"""Presets of the core's parts: GRPO, REINFORCE++, IPPO and MAPPO, with the defaults of `Algorithm`."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from marl_verl.algo.advantage import GAE, TASK, Advantage
from marl_verl.algo.advantage.groups import BATCH
from marl_verl.algo.algorithms import Algorithm
from marl_verl.algo.algorithms.reference import PlainRows, Reference, in_groups, rewards_of

GRPO = Algorithm(advantage=Advantage(sample="row", group=TASK, singleton="raw"))
"""A = (r - mean_uid) / (std_uid + 1e-6).

Compared: every row with every row of its task, of any agent and turn. GRPO assumes that a group shares one prompt. This
does not hold in a team, so that GRPO is the baseline ("turn-blind groups") of the other methods. Source: arXiv
2402.03300, verl's `compute_grpo_outcome_advantage`.
"""

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


def grpo(rows: PlainRows) -> list[float]:
    return in_groups(rewards_of(rows), rows, ["uid"], raw=True)


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


REFERENCES: Mapping[str, Reference] = {
    **{"grpo": grpo, "grpo-trajectory-mean": grpo_trajectory_mean, "reinforce++": reinforce_pp},
    **{"ippo": ippo, "mappo": ippo},  # the values are of another critic
}
