"""GRPO: the baselines that know of no agents."""

from __future__ import annotations

import dataclasses

from marl_verl.advantage import Advantage
from marl_verl.algorithms import Algorithm
from marl_verl.rewards import Mix

GRPO = Algorithm(
    sampler="independent",
    rewards=Mix(),
    credit="none",
    advantage=Advantage(sample="row", group=("uid",), singleton="raw"),
    loss="ppo-clip",
)
"""A = (r - mean_uid) / (std_uid + 1e-6).

Compared: every row with every row of its task, whoever acted and when. Its premise is that the group shares one prompt;
in a team it does not, which makes it the baseline ("turn-blind groups") that the other methods improve on. Source:
arXiv 2402.03300, verl's `compute_grpo_outcome_advantage`.
"""

GRPO_TRAJECTORY_MEAN = dataclasses.replace(
    GRPO, advantage=Advantage(sample="session_mean", group=("uid",), singleton="raw")
)
"""A = (r_session - mean_uid) / (std_uid + 1e-6), the same for every row of a session.

Compared: whole episodes of one task. A session's reward is the mean over its rows, and it counts once, however many
turns it has. It cannot tell which agent or turn did well. Source: the global baseline of Dr. MAS's code, arXiv
2602.08847.
"""
