"""The algorithms that come with marl-verl."""

from __future__ import annotations

from marl_verl.advantage.algorithm import Algorithm
from marl_verl.advantage.estimator import Advantage
from marl_verl.advantage.mix import AlphaMix, Mix

GRPO = Algorithm(
    sampler="independent",
    rewards=Mix(),
    credit="none",
    advantage=Advantage(sample="session_mean", group=("uid",), singleton="raw"),
    loss="ppo-clip",
)
"""A = (r_session - mean_uid) / (std_uid + 1e-6), the same for every row of a session.

Compared: whole episodes of one task. A session's reward is the mean over its rows, and it counts once, however many
turns it has. The baseline for teams: it cannot tell which agent or turn did well. Source: arXiv 2402.03300; with one
row per session it is verl's `compute_grpo_outcome_advantage`, with several the global baseline of Dr. MAS (arXiv
2602.08847).
"""

AT_GRPO = Algorithm(
    sampler="independent",
    rewards=AlphaMix(alpha=None),
    credit="none",
    advantage=Advantage(sample="row", group=("uid", "turn", "agent"), singleton="zero"),
    loss="ppo-clip",
)
"""A = (r - mean_g) / (std_g + 1e-6), g = rows of the same task, turn and agent; r = alpha * team + role.

Compared: what the same agent did at the same turn in the other sessions of the task. Source: AT-GRPO, arXiv
2510.11062, with independent sampling; for its tree the group is ("uid", "parent", "agent"). alpha None adds up the
components instead, so that teams without role rewards train too.
"""
