"""A loss: one that verl has, with settings that go over `actor_rollout_ref.actor`."""

from marl_verl.losses import Loss

CLIP_HIGHER = Loss(actor={"policy_loss": {"loss_mode": "vanilla"}, "clip_ratio_low": 0.2, "clip_ratio_high": 0.28})
"""PPO's clipped loss, with more room upwards: rare tokens can become likely (DAPO, arXiv 2503.14476, 3.1)."""
