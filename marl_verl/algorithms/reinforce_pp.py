"""REINFORCE++: one baseline and one scale for the whole batch."""

from __future__ import annotations

from marl_verl.advantage import Advantage
from marl_verl.advantage.groups import BATCH
from marl_verl.algorithms import Algorithm
from marl_verl.rewards import Mix

REINFORCE_PP = Algorithm(
    sampler="independent",
    rewards=Mix(),
    credit="none",
    advantage=Advantage(group=BATCH, eps=1e-8, singleton="zero"),
    loss="ppo-clip",
)
"""A = (r - mean_batch) / (std_batch + 1e-8).

Compared: every row with every row of the batch, over tasks, agents and turns. Source: REINFORCE++, arXiv 2501.03262.
verl's `reinforce_plus_plus` whitens over tokens, so that a long response weighs more; here a row is one sample, as
everywhere in this package. With responses of one length the two agree.
"""
