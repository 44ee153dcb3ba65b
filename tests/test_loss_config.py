"""What a loss makes of a config, and the sentence for everything that does not go with it. Imports no verl."""

from typing import Any

import numpy as np
import pytest
from marl_verl_testing import check_loss
from omegaconf import DictConfig

from marl_verl.algo.algorithms.losses import GSPO, PARAMETERS
from marl_verl.config.parts import loss_named
from marl_verl.errors import MarlError
from marl_verl.plugins import Registry
from tests.batches import resolved
from tests.sites import use_plugin

RECIPE = """
  agents: {holder: {policy: one}, asker: {policy: two}}
  policies: {one: {tiny: {}}, two: {tiny: {}}}
data: {train_batch_size: 8}
"""


def test_a_policys_settings_go_over_the_loss_and_a_frozen_one_need_not_fit(composed: DictConfig) -> None:
    mine = [
        *("marl.algorithm.options.loss=gspo-tis", "marl.policies.two.actor.clip_ratio_low=0.01"),
        *("marl.policies.two.rollout.calculate_log_probs=false", "actor_rollout_ref.rollout.load_format=dummy"),
    ]
    config = resolved(composed, *mine, "marl.policies.two.frozen=true")
    # no weights are synced to the servers of a frozen policy: they load them
    formats = {name: config.policies[name].actor_rollout_ref.rollout.load_format for name in ("one", "two")}
    assert formats == {"one": "dummy", "two": "auto"}
    assert config.algorithm.rollout_correction.rollout_is == "token"
    for name, low in (("one", 3e-4), ("two", 0.01)):
        actor = config.policies[name].actor_rollout_ref.actor
        assert (actor.policy_loss.loss_mode, actor.clip_ratio_low, actor.clip_ratio_high) == ("gspo", low, 4e-4)
    with pytest.raises(MarlError, match="policy 'two' does not request them"):
        resolved(composed, *mine)


# Loss functions of plugins: checked before a run, registered with verl, and what `check_loss` finds


core_algos = pytest.importorskip("verl.trainer.ppo.core_algos")


def plain(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights):  # type: ignore[no-untyped-def]  # fmt: skip
    losses = -(log_prob - old_log_prob).exp() * advantages * (1.0 if rollout_is_weights is None else rollout_is_weights)
    return core_algos.agg_loss(losses, response_mask, loss_agg_mode, **config.global_batch_info), {}


def registered(monkeypatch: pytest.MonkeyPatch, **losses: Any) -> None:
    def register(registry: Registry) -> None:
        for name, (target, settings) in losses.items():
            registry.loss(name, target, **settings)

    use_plugin(monkeypatch, register)


def test_a_function_is_a_loss_with_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"actor": {"clip_ratio": 0.1}, "correction": {"rollout_is": "token"}, "one_update": True}
    registered(monkeypatch, plain=(plain, settings), lazy=(f"{__name__}:plain", {}))
    found = loss_named("plain")
    assert found.actor == {"clip_ratio": 0.1, "policy_loss": {"loss_mode": "marl:plain"}}
    assert (found.correction, found.one_update, found.function) == ({"rollout_is": "token"}, True, plain)
    assert loss_named("lazy").function is plain
    with pytest.raises(MarlError, match="unknown loss 'plan': did you mean 'plain'"):
        loss_named("plan")


def test_it_is_registered_with_verl(monkeypatch: pytest.MonkeyPatch) -> None:
    from marl_verl.backend.learning.workers import register_loss

    registered(monkeypatch, plain=(plain, {}), constant=(broken("constant"), {}))
    monkeypatch.setattr(core_algos, "POLICY_LOSS_REGISTRY", dict(core_algos.POLICY_LOSS_REGISTRY))
    register_loss("marl:plain")
    assert np.array_equal(check_loss(core_algos.get_policy_loss_fn("marl:plain")), check_loss(plain))
    register_loss("marl:constant")
    with pytest.raises(TypeError, match="loss 'constant' must return"):
        check_loss(core_algos.get_policy_loss_fn("marl:constant"))
    with pytest.raises(MarlError, match="unknown loss 'other'"):
        register_loss("marl:other")


@pytest.mark.parametrize("loss", [plain, GSPO])
def test_right_losses_pass(loss: Any) -> None:
    assert check_loss(loss).shape == (6, 7)


def broken(how: str) -> Any:
    def loss(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights):  # type: ignore[no-untyped-def]  # fmt: skip
        given = dict(zip(PARAMETERS, (old_log_prob, log_prob, advantages, response_mask), strict=False))
        given |= {"loss_agg_mode": loss_agg_mode, "config": config, "rollout_is_weights": rollout_is_weights}
        found, metrics = plain(**given)
        ratio = (log_prob - old_log_prob).exp()
        return {
            "constant": (found.detach(), metrics),
            "padded": (found + 1e-3 * ratio.sum(), metrics),
            "mean": ((-ratio * advantages * response_mask).sum() / response_mask.sum(), metrics),
        }[how]

    return loss


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("constant", "the loss has no gradient"),
        ("padded", "tokens beyond the end of a response get a gradient"),
        ("mean", "summed over micro-batches"),
    ],
)
def test_wrong_losses_are_found(how: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_loss(broken(how))
