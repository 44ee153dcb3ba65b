"""Policy losses: which of verl's registered losses the actor uses, and how it adds tokens up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Loss:
    """Settings of verl's actor that make a loss.

    Attributes:
        actor: merged over `actor_rollout_ref.actor`; a policy's own settings go over it.
    """

    actor: Mapping[str, Any]


PPO_CLIP = Loss({"policy_loss": {"loss_mode": "vanilla"}})
"""-min(ratio A, clip(ratio, 1 - clip_ratio_low, 1 + clip_ratio_high) A), mean over tokens (Schulman et al. 2017, 7)."""
