"""Rewards: mixes, which combine the reward components of a row, and role rewards for any team."""

from marl_verl.algo.rewards.mix import Mix, RewardMix

__all__ = ["Mix", "RewardMix"]
