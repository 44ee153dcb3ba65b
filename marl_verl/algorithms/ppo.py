"""PPO with a critic: IPPO, where each policy has its own, and MAPPO, with one for the whole team."""

from __future__ import annotations

import dataclasses

from marl_verl.advantage import Advantage
from marl_verl.advantage.gae import GAE
from marl_verl.algorithms import Algorithm
from marl_verl.rewards import Mix

IPPO = Algorithm(
    sampler="independent",
    rewards=Mix(),
    credit="none",
    advantage=Advantage(returns=GAE(critic="policy"), group=("agent",), eps=1e-8, singleton="raw"),
    loss="ppo-clip",
)
"""A = (GAE - mean_agent) / (std_agent + 1e-8).

Compared: a turn with what the policy's critic expected of its observation; then scaled over all rows of the agent in
the batch. Nothing is compared within a task, so that one attempt a task is enough. Source: IPPO, arXiv 2011.09533; GAE,
arXiv 1506.02438.
"""

MAPPO = dataclasses.replace(
    IPPO, advantage=Advantage(returns=GAE(critic="team"), group=("agent",), eps=1e-8, singleton="raw")
)
"""A = (GAE - mean_agent) / (std_agent + 1e-8), the critic's V of the joint observation.

Compared: a turn with what the team's critic expected of what all agents had seen by then. Source: MAPPO, arXiv
2103.01955.
"""
