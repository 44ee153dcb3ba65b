"""Loss functions of plugins: checked before a run, registered with verl, and what `check_loss` finds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from marl_verl_testing import check_loss

from marl_verl import plugins
from marl_verl.algo.algorithms import GSPO, GSPO_TIS, PPO_CLIP, REINFORCE, Loss
from marl_verl.algo.algorithms.losses import PARAMETERS
from marl_verl.config.parts import loss_named
from marl_verl.errors import MarlError

torch = pytest.importorskip("torch")
core_algos = pytest.importorskip("verl.trainer.ppo.core_algos")


def plain(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights):  # type: ignore[no-untyped-def]  # fmt: skip
    weights = 1.0 if rollout_is_weights is None else rollout_is_weights
    losses = -(log_prob - old_log_prob).exp() * advantages * weights
    return core_algos.agg_loss(losses, response_mask, loss_agg_mode, **config.global_batch_info), {}


def registered(monkeypatch: pytest.MonkeyPatch, **losses: Any) -> None:
    @plugins.hookimpl
    def marl_register(registry: plugins.Registry) -> None:
        for name, (target, settings) in losses.items():
            registry.loss(name, target, **settings)

    found = plugins.assemble({"mine": SimpleNamespace(marl_register=marl_register)})
    monkeypatch.setattr(plugins, "load", lambda: found)


def test_a_function_is_a_loss_with_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"actor": {"clip_ratio": 0.1}, "correction": {"rollout_is": "token"}, "one_update": True}
    registered(monkeypatch, plain=(plain, settings), lazy=(f"{__name__}:plain", {}))
    found = loss_named("plain")
    assert found.actor == {"clip_ratio": 0.1, "policy_loss": {"loss_mode": "marl:plain"}}
    assert (found.correction, found.one_update, found.function) == ({"rollout_is": "token"}, True, plain)
    assert loss_named("lazy").function is plain
    with pytest.raises(MarlError, match="unknown loss 'plan': did you mean 'plain'"):
        loss_named("plan")


@pytest.mark.parametrize(
    ("target", "settings", "message"),
    [
        (lambda old_log_prob, log_prob: None, {}, r"loss 'bad' must be a function of \(old_log_prob, log_prob, adv"),
        (Loss({}), {"one_update": True}, r"loss 'bad' of .*mine.* is a Loss registered with one_update"),
        (3, {}, "loss 'bad' must be a Loss, got 3"),
    ],
)
def test_what_is_no_loss_is_an_error_before_the_start(
    target: Any, settings: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered(monkeypatch, bad=(target, settings))
    with pytest.raises(MarlError, match=message):
        loss_named("bad")


def test_it_is_registered_with_verl(monkeypatch: pytest.MonkeyPatch) -> None:
    from marl_verl.backend.learning.plugin_losses import register_loss

    registered(monkeypatch, plain=(plain, {}))
    monkeypatch.setattr(core_algos, "POLICY_LOSS_REGISTRY", dict(core_algos.POLICY_LOSS_REGISTRY))
    register_loss("marl:plain")
    assert core_algos.get_policy_loss_fn("marl:plain") is plain
    with pytest.raises(MarlError, match="unknown loss 'other'"):
        register_loss("marl:other")
    with pytest.raises(MarlError, match="loss 'gspo' is no function in this process"):
        register_loss("marl:gspo")


@pytest.mark.parametrize("loss", [plain, PPO_CLIP, GSPO, GSPO_TIS, REINFORCE])
def test_right_losses_pass(loss: Any) -> None:
    assert check_loss(loss).shape == (6, 7)


def broken(how: str) -> Any:
    def loss(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights):  # type: ignore[no-untyped-def]  # fmt: skip
        given = dict(zip(PARAMETERS, (old_log_prob, log_prob, advantages, response_mask), strict=False))
        given |= {"loss_agg_mode": loss_agg_mode, "config": config, "rollout_is_weights": rollout_is_weights}
        found, metrics = plain(**given)
        ratio = (log_prob - old_log_prob).exp()
        return {
            "nan": (found * float("nan"), metrics),
            "constant": (found.detach(), metrics),
            "frozen": (found + ((ratio.data - 1) ** 2 * response_mask).sum(), metrics),  # `.data` is no stop gradient
            "padded": (found + 1e-3 * ratio.sum(), metrics),
            "mean": ((-ratio * advantages * response_mask).sum() / response_mask.sum(), metrics),
            "rows": (found.repeat(2), metrics),
            "alone": found,
        }[how]

    return loss


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("nan", "the loss is nan"),
        ("constant", "the loss has no gradient"),
        ("frozen", r"the gradient of token 0 of row 0 is .*, finite differences give"),
        ("padded", "tokens beyond the end of a response get a gradient"),
        ("mean", "summed over micro-batches"),
        ("rows", "the loss must be a scalar"),
        ("alone", r"the loss must return \(tensor, metrics\)"),
    ],
)
def test_wrong_losses_are_found(how: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_loss(broken(how))
    with pytest.raises(MarlError, match="check_loss needs a loss function"):
        check_loss("gspo")  # type: ignore[arg-type]
