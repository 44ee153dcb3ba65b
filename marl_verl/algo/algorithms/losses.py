"""Policy losses: which of verl's registered losses the actor uses, with its settings and token aggregation.

Every loss here is verl's own code, selected by config; a plugin can register a function. Below, an update has N rows
(without padding), row i has T_i sampled tokens and one advantage A_i, T = sum_i T_i, and for token t of row i

    p_it = log pi(token),     r_it = pi / pi_old,     s_i = exp(mean_t log r_it)   (sequence ratio, GSPO)
    w_it = min(pi_old / pi_rollout, 2)                (what the trainer computes, over what the server sampled with)

pi_old is the policy at the start of the update of this batch; neither pi_old nor w carries a gradient. verl adds its
entropy bonus and its KL loss (`entropy_coeff`, `use_kl_loss`), aggregated over tokens like the loss.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from marl_verl.errors import user_error

LossFunction = Callable[..., tuple[Any, Mapping[str, Any]]]
"""(log-probs, advantages and mask, [rows, tokens] each, ...) -> (scalar loss, metrics): verl's policy losses."""

PARAMETERS = (
    *("old_log_prob", "log_prob", "advantages", "response_mask"),
    *("loss_agg_mode", "config", "rollout_is_weights"),
)
"""The arguments with which verl calls a policy loss."""

OWN = "marl:"
"""Prefix of `policy_loss.loss_mode` for the function of a plugin, followed by its registered name."""


@dataclass(frozen=True)
class Loss:
    """A policy loss as verl settings: a function with parameters `PARAMETERS`, or one of verl's, chosen by `actor`."""

    actor: Mapping[str, Any]  # merged into `actor_rollout_ref.actor`; a policy's own settings take precedence
    # merged into `algorithm.rollout_correction`: servers sample with other probabilities than the trainer computes
    correction: Mapping[str, Any] = field(default_factory=dict)
    one_update: bool = False  # valid only for rows of the current weights: several updates of a batch are an error
    function: LossFunction | None = None
    numbered: bool = False  # its `rollout_is_weights` are 0, and m for rows of other policies in a batch's m-th update

    @classmethod
    def of(cls, function: LossFunction, name: str, settings: Mapping[str, Any]) -> "Loss":
        """The loss of a function, registered as `name` with these settings. MarlError: it lacks a parameter."""
        wanted = f"({', '.join(PARAMETERS)}), which verl passes by name"
        with user_error(f"loss '{name}' must be a function of {wanted}", TypeError, ValueError):
            inspect.signature(function).bind(**dict.fromkeys(PARAMETERS))
        actor = dict(settings.get("actor") or {})
        actor["policy_loss"] = {**actor.get("policy_loss", {}), "loss_mode": OWN + name}
        return cls(actor, settings.get("correction") or {}, bool(settings.get("one_update")), function)

    @property
    def one_clip(self) -> bool:
        """Whether it may read `clip_ratio`: verl's losses, and functions with that setting, read `clip_ratio_low` and
        `clip_ratio_high`."""
        return self.function is not None and "clip_ratio_low" not in self.actor


TOKEN_TIS: Mapping[str, Any] = {"rollout_is": "token", "rollout_is_threshold": 2.0}
"""w_it = min(pi_old / pi_rollout, 2), a factor on each token's loss (truncated importance sampling)."""

VERL = Loss({})
"""The loss of `actor_rollout_ref.actor.policy_loss.loss_mode`, with verl's settings of it."""

PPO_CLIP = Loss({"policy_loss": {"loss_mode": "vanilla"}})
"""L = 1/T sum_it l_it,   l_it = -min(r_it A_i, clip(r_it, 1 - clip_ratio_low, 1 + clip_ratio_high) A_i),
and where A_i < 0 at most -clip_ratio_c A_i.

Token aggregation (`loss_agg_mode`) and clip ratios are set in config; verl's defaults are the mean over tokens (as
above), 0.2 on both sides, and clip_ratio_c 3 (Schulman et al. 2017, arXiv 1707.06347, equation 7; the bound for
negative advantages: Ye et al. 2020, arXiv 1912.09729).
"""

PPO_CLIP_TIS = Loss(PPO_CLIP.actor, TOKEN_TIS)
"""L = 1/T sum_it w_it l_it, with PPO_CLIP's l_it."""

GSPO = Loss(
    {
        "policy_loss": {"loss_mode": "gspo"},
        "loss_agg_mode": "seq-mean-token-mean",
        "clip_ratio_low": 3e-4,
        "clip_ratio_high": 4e-4,
    }
)
"""L = -1/N sum_i min(s_i A_i, clip(s_i, 1 - 0.0003, 1 + 0.0004) A_i)

One ratio per row, so that whole rows are clipped; the mean of log-ratios changes little, hence the small clip. Source:
Zheng et al. 2025, arXiv 2507.18071, sections 4.1 and 5.1 (clip); used by MARS2+, arXiv 2602.07848.
"""

GSPO_TIS = Loss(GSPO.actor, TOKEN_TIS)
"""L = -1/N sum_i 1/T_i sum_t w_it min(s_it A_i, clip(s_it, 1 - 0.0003, 1 + 0.0004) A_i),
s_it = s_i pi / stop_gradient(pi): the value of s_i with the gradient of token t (GSPO-token, section 4.3)."""

REINFORCE = Loss({"policy_loss": {"loss_mode": "gpg"}, "loss_agg_mode": "seq-mean-token-sum"}, one_update=True)
"""L = -1/N sum_i A_i sum_t p_it

The sum over a row's tokens, the mean over rows; no ratio, no clip, no length normalisation (MAGRPO, arXiv 2508.04652;
the authors' code takes the mean over the K samples of a node and then over nodes, which equals the mean over rows, as
each node has K). verl's "gpg" has exactly this gradient. "vanilla" with a disabled clip has it only while the ratio is
1, and its value is only the mean of -A.

pi_old is unused: `algorithm.rollout_correction.bypass_mode=true` saves the forward pass that computes it.
"""
