"""Check a loss function: its gradient, and that padding and the split into micro-batches do not change it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

from marl_verl.algo.advantage import FloatArray
from marl_verl.algo.algorithms.losses import PARAMETERS, Loss, LossFunction
from marl_verl.errors import shown
from marl_verl_testing.given import SECONDS, must, time_limit

STEP = 1e-6  # of the finite differences
LENGTHS = (5, 1, 7, 3, 6, 2)  # response tokens of the rows


def check_loss(
    loss: Loss | LossFunction, *, actor: Mapping[str, Any] | None = None, seed: int = 0, seconds: float = SECONDS
) -> FloatArray:
    """Assert the required properties of a policy loss on random rows in float64; call it from a test.

    The rows differ in length, some ratios are outside a clip range of 0.2, and rows have advantages of both signs, with
    and without importance weights. It asserts that

        the function takes what verl passes by name, and returns (scalar tensor, mapping of metrics)
        loss and gradient are finite, and the gradient reaches the log-probs
        the gradient equals central finite differences; `detach` stops gradients in both
        tokens beyond the end of a response, and columns of padding, change nothing and get no gradient
        the losses of micro-batches add up to the loss of the batch, and their gradients to its gradient

    Aggregate with verl's `agg_loss(..., **config.global_batch_info)`, which has the last property.

    Args:
        loss: the function, or a `Loss`.
        actor: settings of `actor_rollout_ref.actor`, as for `registry.loss`.
        seed: of the rows.

    Returns:
        The gradient of the log-probs [rows, tokens]; your test must check its values.

    Raises:
        AssertionError: the violated property.
        MarlError: the function lacks a parameter.
    """
    settings = dict(actor or {})
    if isinstance(loss, Loss):
        settings = {**loss.actor, **settings}
    else:
        loss = Loss.of(loss, getattr(loss, "__name__", "loss"), {})
    with time_limit("check_loss", seconds):
        check = _Check(loss, settings, seed)
        for weighted in (False, True):
            gradient = check.whole(weighted)
            check.differences(gradient, weighted)
            check.padding(gradient, weighted)
            check.split(gradient, weighted)
        return np.asarray(check.whole(weighted=False)[1].numpy(), dtype=np.float64)


class _Check:
    """One check: the loss, its config, and random rows."""

    def __init__(self, loss: Loss, settings: Mapping[str, Any], seed: int) -> None:
        import torch
        from verl.trainer.ppo.core_algos import get_policy_loss_fn
        from verl.workers.config import ActorConfig, PolicyLossConfig

        self.torch: Any = torch
        policy = PolicyLossConfig(**settings.get("policy_loss", {}))
        arguments = {name: value for name, value in settings.items() if name != "policy_loss"}
        self.config: Any = ActorConfig(
            strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=1, use_torch_compile=False, policy_loss=policy,
            **arguments,
        )  # fmt: skip
        self.function: Callable[..., Any] = loss.function or get_policy_loss_fn(policy.loss_mode)
        random, shape = torch.Generator().manual_seed(seed), (len(LENGTHS), max(LENGTHS))

        def normal() -> Any:
            return torch.randn(shape, generator=random, dtype=torch.float64)

        self.mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
        self.log_prob = -normal().abs() - 0.1
        self.rows = {
            "old_log_prob": self.log_prob + 0.3 * normal(),
            "advantages": (normal()[:, :1] + 0.1 * torch.tensor([1, -1] * 3)[:, None]).expand(shape).clone(),
            "rollout_is_weights": (0.5 * normal()).exp().clamp(max=2.0),
        }

    def call(self, log_prob: Any, mask: Any, rows: Mapping[str, Any], weighted: bool) -> Any:
        self.config.global_batch_info.update(
            dp_size=1, batch_num_tokens=sum(LENGTHS), global_batch_size=len(LENGTHS), loss_scale_factor=None
        )
        arguments = {**rows, "log_prob": log_prob, "response_mask": mask, "config": self.config}
        arguments |= {"loss_agg_mode": self.config.loss_agg_mode}
        arguments |= {} if weighted else {"rollout_is_weights": None}
        returned = self.function(**{name: arguments[name] for name in PARAMETERS})
        match returned:
            case (self.torch.Tensor(ndim=0) as value, Mapping()):
                return value
        raise AssertionError(f"the loss must return (scalar tensor, metrics), got {shown(returned)}")

    def gradient(self, log_prob: Any, mask: Any, rows: Mapping[str, Any], weighted: bool) -> tuple[float, Any]:
        log_prob = log_prob.clone().requires_grad_()
        loss = self.call(log_prob, mask, rows, weighted)
        must(loss.requires_grad, "the loss has no gradient: it does not depend on log_prob")
        loss.backward()
        return float(loss), log_prob.grad

    def whole(self, weighted: bool) -> tuple[float, Any]:
        loss, gradient = self.gradient(self.log_prob, self.mask, self.rows, weighted)
        must(np.isfinite(loss), f"the loss is {loss}")
        wrong = (~gradient.isfinite()).nonzero().tolist()
        must(not wrong, f"the gradient of token {wrong[:1]} (row, token) is not finite")
        must(bool(gradient.any()), "the gradient is 0 everywhere")
        return loss, gradient

    def differences(self, returned: tuple[float, Any], weighted: bool) -> None:
        """The gradient is that of the loss, with what `detach` returned as constants."""
        constants: list[Any] = []
        with self.torch.no_grad(), _detached(constants, record=True):
            self.call(self.log_prob, self.mask, self.rows, weighted)
        for row, token in self.mask.nonzero().tolist():
            sides = []
            for step in (STEP, -STEP):
                moved = self.log_prob.clone()
                moved[row, token] += step
                with self.torch.no_grad(), _detached(list(constants), record=False):
                    sides.append(float(self.call(moved, self.mask, self.rows, weighted)))
            wanted, got = (sides[0] - sides[1]) / (2 * STEP), float(returned[1][row, token])
            same = abs(wanted - got) <= 1e-7 + 1e-5 * abs(wanted)
            must(same, f"the gradient of token {token} of row {row} is {got:.9g}, finite differences give {wanted:.9g}")

    def padding(self, returned: tuple[float, Any], weighted: bool) -> None:
        outside = ~self.mask
        must(not returned[1][outside].any(), "tokens beyond the end of a response get a gradient: multiply by the mask")

        def wider(values: Any, fill: float) -> Any:
            values = self.torch.where(outside, self.torch.full_like(values, fill), values)
            return self.torch.nn.functional.pad(values, (0, 3), value=fill)

        rows = {name: wider(values, 0.7 + number) for number, (name, values) in enumerate(self.rows.items())}
        mask = self.torch.nn.functional.pad(self.mask, (0, 3), value=False)
        loss, gradient = self.gradient(wider(self.log_prob, -2.5), mask, rows, weighted)
        self.same(returned, (loss, gradient[:, : outside.shape[1]]), "with other values in the padding, and more of it")

    def split(self, returned: tuple[float, Any], weighted: bool) -> None:
        total, parts = 0.0, []
        for part in (slice(0, 1), slice(1, 4), slice(4, None)):
            rows = {name: values[part] for name, values in self.rows.items()}
            loss, gradient = self.gradient(self.log_prob[part], self.mask[part], rows, weighted)
            total += loss
            parts.append(gradient)
        self.same(returned, (total, self.torch.cat(parts)), "summed over micro-batches")

    def same(self, returned: tuple[float, Any], again: tuple[float, Any], when: str) -> None:
        same = abs(returned[0] - again[0]) <= 1e-9 * (1 + abs(returned[0]))
        must(same, f"the loss is {returned[0]}, and {again[0]} {when}")
        must(self.torch.allclose(returned[1], again[1], rtol=1e-9, atol=1e-12), f"the gradient differs {when}")


@contextmanager
def _detached(constants: list[Any], record: bool) -> Iterator[None]:
    """Within the context `Tensor.detach` appends its results to `constants`, or returns these in order."""
    import torch

    original = torch.Tensor.detach

    def detach(tensor: Any) -> Any:
        if not record:
            return constants.pop(0)
        constants.append(original(tensor).clone())
        return constants[-1]

    with patch.object(torch.Tensor, "detach", detach):
        yield
