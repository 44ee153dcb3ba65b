"""Check a loss function: padding and the split into micro-batches change neither it nor its gradient."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from marl_verl.algo.advantage import FloatArray
from marl_verl.algo.algorithms.losses import PARAMETERS, Loss, LossFunction
from marl_verl.errors import shown
from marl_verl_testing.given import SECONDS, must, time_limit

LENGTHS = (5, 1, 7, 3, 6, 2)  # response tokens of the rows

Rows = dict[str, Any]
"""Argument of a loss -> its values [rows, tokens]."""


def check_loss(loss: Loss | LossFunction, *, actor: Mapping[str, Any] | None = None) -> FloatArray:
    """Assert the required properties of a policy loss on random rows in float64; call it from a test.

    The rows differ in length, some ratios are outside a clip range of 0.2, and rows have advantages of both signs, with
    and without importance weights. It asserts that

        the function takes what verl passes by name, and returns (scalar tensor, mapping of metrics)
        loss and gradient are finite, and the gradient reaches the log-probs
        tokens beyond the end of a response, and columns of padding, change nothing and get no gradient
        the losses of micro-batches add up to the loss of the batch, and their gradients to its gradient

    Aggregate with verl's `agg_loss(..., **config.global_batch_info)`, which has the last property.

    Args:
        loss: the function, or a `Loss`.
        actor: settings of `actor_rollout_ref.actor`, as for `registry.loss`.

    Returns the gradient of the log-probs [rows, tokens]; your test must check its values.
    """
    import torch

    function, config = _verls(loss, dict(actor or {}))
    rows, width = _rows(), max(LENGTHS)
    mask = rows["response_mask"]

    def evaluated(batch: Rows, log_prob: Any) -> Any:
        arguments = {**batch, "log_prob": log_prob, "config": config, "loss_agg_mode": config.loss_agg_mode}
        returned = function(**{name: arguments[name] for name in PARAMETERS})
        right = isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Mapping)
        must(right and returned[0].ndim == 0, f"the loss must return (scalar tensor, metrics), got {shown(returned)}")
        return returned[0]

    def gradient(batch: Rows) -> tuple[Any, Any]:
        log_prob = batch["log_prob"].clone().requires_grad_()
        value = evaluated(batch, log_prob)
        must(value.requires_grad, "the loss has no gradient: it does not depend on log_prob")
        value.backward()
        return value.detach(), log_prob.grad

    def same(value: Any, other: Any, when: str) -> None:
        must(value.allclose(other, rtol=1e-9, atol=1e-12), f"the loss or its gradient differs {when}")

    with time_limit("check_loss", SECONDS):
        for batch in (rows, {**rows, "rollout_is_weights": None}):
            value, slope = gradient(batch)
            must(value.isfinite() and slope.isfinite().all(), f"the loss {value} or its gradient is not finite")
            must(slope.any(), "the gradient is 0 everywhere")
            must(not slope[~mask].any(), "tokens beyond the end of a response get a gradient: multiply by the mask")
            padded, padded_slope = gradient({name: _padded(values, mask) for name, values in batch.items()})
            same(value, padded, "with other values in the padding, and more of it")
            same(slope, padded_slope[:, :width], "with other values in the padding, and more of it")
            splits = [[None] * 3 if values is None else values.split([1, 3, 2]) for values in batch.values()]
            parts = [gradient(dict(zip(batch, split, strict=True))) for split in zip(*splits, strict=True)]
            same(value, sum(part for part, _ in parts), "summed over micro-batches")
            same(slope, torch.cat([part for _, part in parts]), "summed over micro-batches")
    return np.asarray(slope.numpy(), dtype=np.float64)


def _verls(loss: Loss | LossFunction, settings: dict[str, Any]) -> tuple[Callable[..., Any], Any]:
    """(the function, verl's config of an actor)."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.workers.config import ActorConfig, PolicyLossConfig

    if isinstance(loss, Loss):
        settings = {**loss.actor, **settings}
    else:
        loss = Loss.of(loss, getattr(loss, "__name__", "loss"), {})
    policy = PolicyLossConfig(**settings.pop("policy_loss", {}))
    required = {"strategy": "fsdp2", "rollout_n": 1, "ppo_micro_batch_size_per_gpu": 1, "use_torch_compile": False}
    config = ActorConfig(**required, policy_loss=policy, **settings)
    config.global_batch_info.update(
        dp_size=1, batch_num_tokens=sum(LENGTHS), global_batch_size=len(LENGTHS), loss_scale_factor=None
    )
    return loss.function or get_policy_loss_fn(policy.loss_mode), config


def _rows() -> Rows:
    import torch

    random, shape = torch.Generator().manual_seed(0), (len(LENGTHS), max(LENGTHS))

    def normal() -> Any:
        return torch.randn(shape, generator=random, dtype=torch.float64)

    log_prob = -normal().abs() - 0.1
    return {
        "log_prob": log_prob,
        "old_log_prob": log_prob + 0.3 * normal(),
        "advantages": (normal()[:, :1] + 0.1 * torch.tensor([1, -1] * 3)[:, None]).expand(shape).clone(),
        "rollout_is_weights": (0.5 * normal()).exp().clamp(max=2.0),
        "response_mask": torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None],
    }


def _padded(values: Any, mask: Any) -> Any:
    """Values with others in the padding, and three more columns of it; of the mask, these are False."""
    from torch.nn.functional import pad

    if values is None:
        return None
    fill = 0 if values.dtype == mask.dtype else -2.5
    return pad(values.masked_fill(~mask, fill), (0, 3), value=fill)
