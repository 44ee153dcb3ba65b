"""Values that verl takes silently, or with which a run would hang or fail late: each is refused before the start.

The messages are in `config_messages.txt`: `MARL_VERL_WRITE=1 pytest tests/test_bad_values.py` writes it anew.
"""

import math
import os
import pickle
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from marl_verl_scripts.verl_script import verl_defaults
from omegaconf import DictConfig, OmegaConf

from marl_verl.config.compose import compose, defaults_of, with_overrides
from marl_verl.config.policy_models import check_scripts
from marl_verl.config.verl_keys import ADDED, ALLOWED, PASS, VERDICTS, key_paths, settings_of
from marl_verl.errors import MarlError
from marl_verl.run import prepare
from marl_verl.run.prepare import check_settings

MESSAGES = Path(__file__).with_name("config_messages.txt")
RECIPE = """
defaults: [marl_trainer, _self_]
marl:
  task: {name: inventory, train_size: 16, test_size: 8}
  workflow: {name: inventory}
  agents: {holder: {policy: one}, asker: {policy: two}}
  policies: {one: {tiny: {steps: 1}}, two: {tiny: {steps: 1}}}
data: {train_batch_size: 8, max_prompt_length: 64, max_response_length: 16}
actor_rollout_ref: {actor: {ppo_mini_batch_size: 8}}
"""
CASES = [line.split(" -> ", 1) for line in MESSAGES.read_text(encoding="utf-8").splitlines() if line]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> DictConfig:
    path = tmp_path_factory.mktemp("recipe") / "team.yaml"
    path.write_text(RECIPE)
    return compose(path, [], hardware="cpu")


@pytest.fixture
def refused(base: DictConfig, tmp_path: Path) -> Callable[[str], str]:
    """The message for the shared config with overrides."""

    def message(line: str) -> str:
        with pytest.raises(MarlError) as error:
            prepare._check(with_overrides(base, shlex.split(line)), tmp_path / "run")
        return str(error.value)

    return message


def test_the_recipe_itself_is_right(base: DictConfig, tmp_path: Path) -> None:
    assert prepare._check(base, tmp_path / "run").made.keys() == {"one", "two"}


def test_messages_of_values_keys_and_combinations(refused: Callable[[str], str]) -> None:
    messages = {line: re.sub(r"line \d+", "line N", refused(line)) for line, _ in CASES}
    messages = {line: re.sub(", 'marl:[^']*'", "", message) for line, message in messages.items()}  # of other tests
    assert all("\n" not in message and len(message) < 1000 for message in messages.values())
    if os.environ.get("MARL_VERL_WRITE"):
        MESSAGES.write_text("".join(f"{line} -> {message}\n" for line, message in messages.items()), "utf-8")
    assert messages == dict(CASES)


@pytest.mark.parametrize("section", ["", "marl.policies.one.", "marl.critic."])
def test_numbers_out_of_range(base: DictConfig, section: str) -> None:
    """Every key with a range of ours, in the whole config and in the sections of a policy and the critic."""
    verl = {"": "", "marl.policies.one.": "actor_rollout_ref.", "marl.critic.": "critic."}[section]
    usual, stored = verl_defaults(), pickle.dumps(OmegaConf.to_container(base))
    numbers = [key for key in ALLOWED if isinstance(usual.get(key), int | float) and key.startswith(verl)]
    assert len(numbers) > 10
    for key in numbers:
        for value in (-3, math.nan, [1], {"a": 1}):
            if value == -3 and key.endswith(("entropy_coeff", "clip_cov_lb", "clip_cov_ub")):
                continue
            content: Any = pickle.loads(stored)
            *places, name = f"{section or verl}{key.removeprefix(verl)}".split(".")
            inner = content
            for place in places:
                inner = inner.setdefault(place, {})
            inner[name] = value
            with pytest.raises(MarlError, match="must be"):
                settings_of(content, defaults_of(base))


def test_tables_name_keys_of_verl() -> None:
    """A key that verl renames would no longer be checked, or be refused as one that no team uses."""
    known = {*verl_defaults()} | {key for key, _ in key_paths(ADDED)} | set(ADDED)
    inside = ("mixed_precision", "override_config", "engine_kwargs", "override_optimizer_config", "runtime_env")
    inside += ("custom_reward_function", "actor.log_prob", "actor.entropy", "actor.pad_to_length")  # not all there
    passed = {*ALLOWED, *(key for key, verdict in VERDICTS.items() if verdict == PASS)}
    assert {key for key in passed - known if not any(name in key for name in inside)} == set()


def test_a_frozen_policy_may_act_greedily(base: DictConfig) -> None:
    frozen = with_overrides(base, ["marl.policies.one.frozen=true", "marl.policies.one.rollout.temperature=0"])
    check_scripts(frozen, check_settings(frozen)[0], training=True)


def test_a_team_without_a_trained_policy_is_measured_and_not_trained(base: DictConfig) -> None:
    frozen = with_overrides(base, ["marl.policies.one.frozen=true", "marl.policies.two={script: kuhn-equilibrium}"])
    team = check_settings(frozen)[0]
    check_scripts(frozen, team, training=False)
    with pytest.raises(MarlError, match="all policies are frozen"):
        check_scripts(frozen, team, training=True)
