"""Rewards: how the components of a row become its one reward, and role rewards that any team can use."""

from marl_verl.rewards.mix import Mix, RewardMix, total, weighted

__all__ = ["Mix", "RewardMix", "total", "weighted"]
