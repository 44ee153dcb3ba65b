"""Algorithms: sampler, reward mix, credit, advantage and loss, composed; the presets, losses and metrics."""

from marl_verl.algo.algorithms.algorithm import Algorithm, Metric
from marl_verl.algo.algorithms.losses import Loss
from marl_verl.algo.algorithms.presets import PlainRows, in_groups, rewards_of

__all__ = ["Algorithm", "Loss", "Metric", "PlainRows", "in_groups", "rewards_of"]
