"""Algorithms: sampler, reward mix, credit, advantage and loss, composed; the presets, losses and metrics."""

from marl_verl.algo.algorithms.algorithm import Algorithm, Metric
from marl_verl.algo.algorithms.losses import GSPO, GSPO_TIS, PPO_CLIP, PPO_CLIP_TIS, REINFORCE, TOKEN_TIS, Loss

__all__ = ["Algorithm", "Loss", "Metric"]
__all__ += ["GSPO", "GSPO_TIS", "PPO_CLIP", "PPO_CLIP_TIS", "REINFORCE", "TOKEN_TIS"]
