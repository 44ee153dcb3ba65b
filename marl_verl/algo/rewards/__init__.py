"""Rewards: mixes, which combine the reward components of a row, and role rewards for any team."""

from marl_verl.algo.rewards.mix import Mix, RewardMix, total, weighted

__all__ = ["Mix", "RewardMix", "total", "weighted"]
