"""What a loss makes of a config, and the sentence for everything that does not go with it. Imports no verl."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from marl_verl import plugins
from marl_verl.algo.algorithms.losses import GSPO, PPO_CLIP, PPO_CLIP_TIS, Loss
from marl_verl.config.compose import compose, with_overrides
from marl_verl.config.loss import check_policy, with_loss
from marl_verl.config.resolve import resolve
from marl_verl.config.stored import marl_section, read_composed
from marl_verl.errors import MarlError
from marl_verl.team import read_team

LOSSES = ("ppo-clip", "ppo-clip-tis", "gspo", "gspo-tis", "reinforce")
ACTOR, CORRECTION = "actor_rollout_ref.actor", "algorithm.rollout_correction"
RECIPE = """
defaults: [marl_trainer, _self_]
data: {train_batch_size: 8}
marl:
  task: {name: inventory}
  workflow: {name: inventory}
  agents: {holder: {policy: one}, asker: {policy: two}}
  policies: {one: {tiny: {}}, two: {tiny: {}}}
"""


@pytest.fixture(scope="module")
def composed(tmp_path_factory: pytest.TempPathFactory) -> DictConfig:
    recipe = tmp_path_factory.mktemp("loss-config") / "recipe.yaml"
    recipe.write_text(RECIPE)
    return compose(recipe, [], hardware="cpu")


@pytest.fixture(scope="module")
def small(composed: DictConfig) -> DictConfig:
    """The part of it that a loss is about, which is quicker to copy."""
    part = OmegaConf.masked_copy(composed, ["actor_rollout_ref", "algorithm", "data", "marl"])
    part.actor_rollout_ref = OmegaConf.masked_copy(part.actor_rollout_ref, ["actor", "rollout"])
    return part


def learning(composed: DictConfig, loss: str, *overrides: str) -> DictConfig:
    """The config with a loss, for a policy without own settings."""
    found = plugins.load().get("losses", loss)
    config = with_loss(with_overrides(composed, overrides), loss, found)
    check_policy(config, "one", loss, found)
    return config


def settings(config: DictConfig) -> tuple[Any, ...]:
    actor, correction = config.actor_rollout_ref.actor, config.algorithm.rollout_correction
    clip = (actor.clip_ratio_low, actor.clip_ratio_high)
    return (
        actor.policy_loss.loss_mode,
        actor.loss_agg_mode,
        clip,
        correction.rollout_is,
        correction.rollout_is_threshold,
    )


def test_each_loss_makes_its_own_settings(small: DictConfig) -> None:
    assert set(LOSSES) <= set(plugins.load().names("losses"))
    assert {loss: settings(learning(small, loss)) for loss in LOSSES} == {
        "ppo-clip": ("vanilla", "token-mean", (0.2, 0.2), None, 2.0),
        "ppo-clip-tis": ("vanilla", "token-mean", (0.2, 0.2), "token", 2.0),
        "gspo": ("gspo", "seq-mean-token-mean", (3e-4, 4e-4), None, 2.0),
        "gspo-tis": ("gspo", "seq-mean-token-mean", (3e-4, 4e-4), "token", 2.0),
        "reinforce": ("gpg", "seq-mean-token-sum", (0.2, 0.2), None, 2.0),
    }
    assert small.algorithm.rollout_correction.rollout_is is None  # what was composed is left alone


def resolved(composed: DictConfig, *overrides: str) -> DictConfig:
    config = with_overrides(composed, overrides)
    marl: Any = OmegaConf.to_container(config.marl, resolve=True)
    return resolve(config, read_team(marl))


def test_every_policy_gets_the_loss_its_own_settings_go_over_it_and_a_frozen_one_need_not_fit(
    composed: DictConfig,
) -> None:
    mine = [
        "marl.algorithm.options.loss=gspo-tis",
        "marl.policies.two.actor.clip_ratio_low=0.01",
        "marl.policies.two.rollout.calculate_log_probs=false",
        "actor_rollout_ref.rollout.load_format=dummy",
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


def test_a_correction_goes_with_a_loss_that_has_none(small: DictConfig) -> None:
    given = (
        f"{CORRECTION}.rollout_is=sequence",
        f"{CORRECTION}.rollout_is_threshold='0.5_5'",
        f"{CORRECTION}.rollout_rs='token_k1, seq_max_k2'",
        f"{CORRECTION}.rollout_rs_threshold='0.5_2,0.1'",
    )
    correction = learning(small, "gspo", *given).algorithm.rollout_correction
    assert (correction.rollout_is, correction.rollout_is_threshold) == ("sequence", "0.5_5")
    assert correction.rollout_rs == "token_k1, seq_max_k2"
    # the same as the loss says it, and nothing at all, are no contradiction
    assert learning(small, "gspo-tis", f"{CORRECTION}.rollout_is=token").algorithm.rollout_correction.rollout_is


@pytest.mark.parametrize(
    ("loss", "overrides", "message"),
    [
        (
            "gspo-tis",
            [f"{CORRECTION}.rollout_is=sequence"],
            f"'{CORRECTION}.rollout_is' is 'sequence', but loss 'gspo-tis' sets it to 'token'",
        ),
        ("ppo-clip-tis", [f"{CORRECTION}.rollout_is_threshold=5.0"], "is 5.0, but loss 'ppo-clip-tis' sets it to 2.0"),
        (
            "gspo",
            [f"{ACTOR}.clip_ratio_low=0.1"],
            f"'{ACTOR}.clip_ratio_low' is 0.1, but loss 'gspo' sets it to 0.0003: leave it out, or set "
            "marl.policies.<name>.actor.clip_ratio_low",
        ),
        ("ppo-clip", [f"{ACTOR}.policy_loss.loss_mode=gspo"], "policy_loss.loss_mode' is 'gspo', but loss 'ppo-clip'"),
        (
            "gspo-tis",
            [f"{CORRECTION}.bypass_mode=true"],
            "so that rollout_is=token (loss 'gspo-tis') has no effect: set bypass_mode=false",
        ),
        (
            "gspo",
            [
                f"{CORRECTION}.bypass_mode=true",
                f"{CORRECTION}.rollout_rs=token_k2",
                f"{CORRECTION}.rollout_rs_threshold=1",
            ],
            "so that rollout_rs=token_k2",
        ),
        (
            "gspo-tis",
            ["actor_rollout_ref.rollout.calculate_log_probs=false"],
            "policy 'one' does not request them: set rollout.calculate_log_probs=true",
        ),
        (
            "reinforce",
            [f"{ACTOR}.ppo_epochs=2"],
            "loss 'reinforce' allows one optimiser update per batch, but policy 'one' would make 2 (ppo_epochs=2, "
            "ppo_mini_batch_size=256, data.train_batch_size=8): set ppo_epochs=1 and ppo_mini_batch_size=8, "
            "below actor_rollout_ref.actor or marl.policies.one.actor",
        ),
        ("reinforce", [f"{ACTOR}.ppo_mini_batch_size=3"], "policy 'one' would make 3"),
    ],
)
def test_settings_incompatible_with_a_loss_raise(
    small: DictConfig, loss: str, overrides: list[str], message: str
) -> None:
    with pytest.raises(MarlError) as error:
        learning(small, loss, *overrides)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_verls_bypass_mode_loss_has_settings_of_its_own(small: DictConfig) -> None:
    config = learning(small, "ppo-clip")
    config.actor_rollout_ref.actor.policy_loss.loss_mode = "bypass_mode"  # as a policy's own settings may say
    with pytest.raises(MarlError, match=r"policy 'one' has policy_loss.loss_mode=bypass_mode, which ignores algorithm"):
        check_policy(config, "one", "ppo-clip", PPO_CLIP)


def test_validation_has_the_teams_sampling_and_not_the_first_policys(composed: DictConfig) -> None:
    """verl reads them at the top of the config, where the first policy's part is."""
    own = with_overrides(composed, [f"marl.policies.one.rollout.{key}" for key in ("temperature=0.5", "top_k=7")])
    found = resolved(own)
    assert found.policies.one.actor_rollout_ref.rollout.temperature == 0.5
    for key in ("temperature", "top_p", "top_k"):
        assert found.actor_rollout_ref.rollout[key] == composed.actor_rollout_ref.rollout[key]


def test_a_registered_loss_must_be_one(composed: DictConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    found = plugins.load()
    monkeypatch.setattr(type(found), "get", _with_wrong_loss(type(found).get))
    with pytest.raises(MarlError, match=r"loss 'ppo-clip' must be a Loss, got {'loss_mode': 'vanilla'}"):
        resolved(composed)


def _with_wrong_loss(get: Any) -> Any:
    def wrong(self: Any, kind: str, name: str) -> Any:
        return {"loss_mode": "vanilla"} if kind == "losses" else get(self, kind, name)

    return wrong


def test_a_loss_of_ones_own_may_differ_from_verls_defaults(small: DictConfig) -> None:
    own = Loss(PPO_CLIP.actor, {"rollout_is": "token", "rollout_is_threshold": 5.0})
    assert with_loss(small, "own", own).algorithm.rollout_correction.rollout_is_threshold == 5.0
    assert (PPO_CLIP.correction, GSPO.correction, PPO_CLIP_TIS.actor) == ({}, {}, PPO_CLIP.actor)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_run_with_the_loss_can_be_resumed(composed: DictConfig, loss: str, tmp_path: Path) -> None:
    """The config that a loss has changed is stored beside the composed one, which has not its settings."""
    config = with_overrides(composed, [f"marl.algorithm.options.loss={loss}"])
    OmegaConf.save(config, tmp_path / "composed.yaml")
    OmegaConf.save(resolve(config, read_team(marl_section(config))), tmp_path / "config.yaml")
    assert read_composed(tmp_path).marl.algorithm.options.loss == loss
