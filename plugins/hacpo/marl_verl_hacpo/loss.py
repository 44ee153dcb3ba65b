"""Loss `hacpo`: GSPO on a policy's own rows; on those of other policies a ratio that only reduces, clipped from below.

Equations 47 to 53 of arXiv 2603.02604. Row i has T_i tokens in the learner's vocabulary and one advantage A_i, which of
another policy's row contains its capability ratio; m updates of the batch were made before:

    s_i = (pi(y_i) / pi_old(y_i))^(1 / T_i)                               pi_old: the policy that sampled y_i
    own rows       J_i = min(s_i A_i, clip(s_i, 1 - clip_ratio_low, 1 + clip_ratio_high) A_i)
    other rows     J_i = c_i stop_gradient(c_i)^alpha A_i,       c_i = clip(s_i, min(1, 1 - delta + m step), 1)
    L = -1/N sum_i J_i

The paper adds two means over G rows each, which is N / G times this mean; the authors' code is as here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from marl_verl.algo.algorithms import Loss

SETTINGS = {
    "actor": {"loss_agg_mode": "seq-mean-token-mean", "clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4},
    "correction": {"bypass_mode": True},  # pi_old is who sampled
}


@dataclass(frozen=True)
class Objective:
    """The loss function. `alpha`: the exponent by which unlikely rows of others count less (equation 12); `delta`: how
    far below 1 their ratio may be (13); `step`: by how much this bound rises with each update of a batch (14)."""

    alpha: float = 1.0
    delta: float = 0.8
    step: float = 0.025

    def __call__(self, **batch: Any) -> tuple[Any, Mapping[str, Any]]:
        import torch
        from verl.trainer.ppo.core_algos import agg_loss

        mask, config, log_prob = batch["response_mask"], batch["config"], batch["log_prob"]
        log_ratio = ((log_prob - batch["old_log_prob"]) * mask).sum(-1) / mask.sum(-1).clamp(min=1)
        ratio, advantage = log_ratio.clamp(max=10.0).exp(), (batch["advantages"] * mask)[:, 0]
        clipped = ratio.clamp(1 - config.clip_ratio_low, 1 + config.clip_ratio_high)
        objective = torch.minimum(ratio * advantage, clipped * advantage)
        if (numbers := batch["rollout_is_weights"]) is not None:  # `Loss.numbered`
            update = numbers[:, 0]
            bound = (1 - self.delta + (update - 1) * self.step).clamp(max=1.0)
            cross = ratio.clamp(bound, torch.ones_like(bound))
            objective = torch.where(update > 0, cross * cross.detach() ** self.alpha * advantage, objective)
            clipped = torch.where(update > 0, cross, clipped)
        share = (ratio != clipped)[mask[:, 0].bool()].float().mean().nan_to_num()  # NaN: padding rows only
        losses = -objective[:, None].expand_as(log_prob)
        loss = agg_loss(losses, mask, batch["loss_agg_mode"], **config.global_batch_info)
        return loss, {"actor/pg_clipfrac": share.item()}


def hacpo_loss(name: str, **options: float) -> Loss:
    """The loss with other options of `Objective`, to be registered under this name."""
    return replace(Loss.of(Objective(**options), name, SETTINGS), numbered=True)


HACPO = hacpo_loss("hacpo")
"""The authors' most frequent settings (table 5): alpha 1, delta 0.8, step 0.025; the clip of own rows is GSPO's."""
