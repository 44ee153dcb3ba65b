"""Algorithms: sampler, reward mix, credit, advantage and loss, composed; one file per preset."""

from marl_verl.algorithms.algorithm import Algorithm
from marl_verl.algorithms.losses import GSPO, GSPO_TIS, PPO_CLIP, PPO_CLIP_TIS, REINFORCE, TOKEN_TIS, Loss
from marl_verl.algorithms.metric import Metric

__all__ = [
    "Algorithm",
    "GSPO",
    "GSPO_TIS",
    "Loss",
    "Metric",
    "PPO_CLIP",
    "PPO_CLIP_TIS",
    "REINFORCE",
    "TOKEN_TIS",
]
