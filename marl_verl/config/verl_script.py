"""The overrides of a verl script as a recipe: `python -m marl_verl.main_ppo key=value ...`.

Keys with a counterpart are translated, those that change nothing of what is trained are dropped, and verl's own that a
team passes on stay as they are. All others are refused together. Without a team in `marl.*`, it is one agent with
workflow `single`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from marl_verl.config.compose import parse_overrides
from marl_verl.config.dr_mas_script import add_dr_mas
from marl_verl.config.script_team import add_team
from marl_verl.config.translation import Translation, defaults, set_key
from marl_verl.config.verl_keys import (
    ADDED,
    CHECKPOINT,
    DROP,
    ENGINE,
    ESTIMATOR,
    INSTEAD,
    OPEN,
    PASS,
    SERVER,
    key_paths,
    verdict,
)
from marl_verl.config.verl_older import translate_settings
from marl_verl.errors import MarlError, nearest

ACTOR, ROLLOUT, MARL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "marl."
ESTIMATORS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "grpo": ("grpo", {}),
    "grpo_vectorized": ("grpo", {}),
    "rloo": ("grpo", {"baseline": "leave-one-out", "norm_by_std": False}),
    "rloo_vectorized": ("grpo", {"baseline": "leave-one-out", "norm_by_std": False, "singleton": "zero"}),
    "reinforce_plus_plus": ("reinforce++", {"std": "population"}),
    "reinforce_plus_plus_baseline": ("grpo", {"scale_group": "batch", "std": "population", "eps": 1e-8}),
    "gpg": ("grpo", {"scale_group": "batch", "std": "nonzero", "eps": 0.0}),
    "remax": ("remax", {}),
    "gdpo": ("gdpo", {}),
    "gae": ("ippo", {"lam": 1.0}),  # verl's default
}
"""`algorithm.adv_estimator` -> (marl.algorithm.name, its options); docs/from-verl.md says where they differ."""
WITHOUT = {
    "opo": "rloo",
    "grpo_passk": "grpo",
    "optimal_token_baseline": "rloo",
    "tir_optimal_token_baseline": "rloo",
}
"""Estimators of verl that marl-verl does not have -> the nearest one that it has."""
READ = {"gamma": "gamma", "lam": "lam", "norm_adv_by_std_in_grpo": "norm_by_std"}
READ |= {"gdpo_reward_keys": "keys", "gdpo_reward_weights": "key_weights"}
"""Keys of `algorithm` that some estimators read -> their options."""
RENAMED = {
    "actor_rollout_ref.rollout.n": "marl.sampler.options.episodes",
    "actor_rollout_ref.rollout.val_kwargs.n": "marl.validation.options.episodes",
    "trainer.max_actor_ckpt_to_keep": "marl.checkpoint.keep",
}
HARMLESS: Mapping[str, tuple[Any, ...]] = {
    "model_engine": ("dp", "fsdp"),
    "trainer.resume_mode": ("auto", "disable"),
    "trainer.v1.trainer_mode": ("sync",),
    "actor_rollout_ref.rollout.agent.default_agent_loop": ("single_turn_agent",),
    "reward.reward_manager.name": ("naive", "dapo", "prime", "batch", "limited", "remote", "gdpo"),
    "reward.reward_manager.source": ("register",),
}
"""Values, other than verl's default, of keys that are refused with a third one."""
VALUES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    **{f"{part}.strategy": (ENGINE, ("fsdp", "fsdp2")) for part in (ACTOR, "actor_rollout_ref.ref", "critic")},
    f"{ROLLOUT}.name": (SERVER, ("vllm",)),
    "trainer.resume_mode": (CHECKPOINT, ("auto", "disable")),
}
"""Keys that a team passes on with these values only."""
SWITCHES = {
    "algorithm.kl_ctrl": "algorithm.use_kl_in_reward",
    "algorithm.kl_penalty": "algorithm.use_kl_in_reward",
    "algorithm.pf_ppo": "algorithm.use_pf_ppo",
    "trainer.resume_from_path": "trainer.resume_mode",
}
"""A key or section -> the key without which it has no effect. Other sections have a key `enable` or `enabled`."""
TRAINER = {"total_epochs": 30, "total_training_steps": None, "save_freq": -1, "test_freq": -1}
"""verl's defaults, which differ from those of a recipe."""
AT_THE_END = 1_000_000
"""Steps between validations, of which the last step has one anyway: a run has at least one."""
BATCH = {"train_batch_size": 1024}
CONFIG_FLAGS = ("--config-path", "--config-name", "--config-dir")


def from_script(overrides: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """(recipe, overrides of it) of a verl script's overrides. MarlError with all keys that cannot be honoured."""
    script = translate(overrides)
    script.check()
    return script.recipe, script.overrides


def translate(overrides: Sequence[str]) -> Translation:
    """What becomes of a verl script's overrides. MarlError for one that is not in Hydra's grammar."""
    script = Translation()
    _read(script, overrides)
    add_dr_mas(script)
    translate_settings(script)
    critic = _add_algorithm(script)
    for key, new in RENAMED.items():
        if (value := script.values.get(key)) is not None:
            script.become(key, new, value)
    _add_run(script)
    if script.values.get("trainer.val_before_train") is False and script.number("trainer.test_freq", -1) < 1:
        script.values.pop("trainer.test_freq", None)
        script.add("trainer.test_freq", AT_THE_END)
        script.translated.append(("no validation", f"one at the end (trainer.test_freq={AT_THE_END})"))
    actor, log_prob = f"{ACTOR}.use_dynamic_bsz", f"{ROLLOUT}.log_prob_use_dynamic_bsz"
    if script.values.get(f"{ACTOR}.ppo_micro_batch_size_per_gpu") is not None and actor not in script.values:
        script.add(actor, False)  # verl's default; with true, the size of a micro-batch has no effect
    if actor in script.values and log_prob not in script.values:
        script.add(log_prob, script.values[actor])
    add_team(script)
    values = dict(script.values)
    for key in values:
        _settle(script, key, critic, values)
    script.recipe |= {"data": dict(BATCH), "trainer": {**TRAINER, "experiment_name": script.experiment}}
    return script


def _read(script: Translation, overrides: Iterable[str]) -> None:
    """Sort overrides into keys of `marl`, of verl, and whole files of verl's config; the last one of a key holds."""
    words = iter(overrides)
    plain = []
    for word in words:
        flag, equals, _ = word.partition("=")
        if flag in CONFIG_FLAGS:
            _config_file(script, word if equals else f"{word} {next(words, '')}")
        else:
            plain.append(word)
    for change in parse_overrides(plain):
        key, text = change.key_or_group, str(change.input_line)
        if change.package is not None:  # a file of verl's config, such as actor@actor_rollout_ref.actor=megatron_actor
            script.refused.append((ENGINE, text))
        elif change.is_delete() or key == "hardware":
            script.overrides.append(text)
        elif key.startswith(MARL):
            set_key(script.recipe, key, change.value())
        elif isinstance(content := change.value(), dict) and content and not OPEN.fullmatch(key):
            for path, leaf in key_paths(content, key):
                if not isinstance(leaf, dict) or not leaf:
                    script.add(path, leaf)
        else:
            script.values[key], script.lines[key] = content, f"{key}={text.partition('=')[2]}"


def _config_file(script: Translation, line: str) -> None:
    """`--config-path` and `--config-name`: dropped where they name verl's own config for FSDP."""
    name = Path(re.split("[= ]", line, maxsplit=1)[1]).name.removesuffix(".yaml")
    if "config-name" not in line or name == "ppo_trainer":
        script.dropped.append(line)
    else:
        megatron = name.startswith("ppo_") and name.endswith("_trainer")
        script.refused.append((ENGINE if megatron else "config files of your own: write their keys as overrides", line))


def _add_run(script: Translation) -> None:
    """The run directory, and the name in trackers."""
    key, name = "trainer.default_local_dir", "trainer.experiment_name"
    script.experiment = script.take(name) if name in script.values else None
    if not script.values.get(key):
        return script.drop(key) if key in script.values else None
    path = Path(os.path.abspath(os.path.expanduser(str(script.take(key)))))
    script.put("marl.run", {"dir": str(path.parent), "name": path.name})


def _settle(script: Translation, key: str, critic: bool, values: Mapping[str, Any]) -> None:
    """Pass a key on to verl, drop it, or refuse it; `values` are those of all keys."""
    value, line, reason = script.values[key], script.lines[key], verdict(key)
    if key in VALUES and value not in VALUES[key][1]:
        return script.refuse(key, VALUES[key][0])
    if (key.startswith("critic.") and not critic) or value in HARMLESS.get(key, ()):
        return script.drop(key)
    if reason == DROP or (reason != PASS and _harmless(values, key, value)):
        return script.drop(key)
    if reason not in INSTEAD and not _known(key):
        return script.drop(key) if value is None else script.refuse(key, _unknown(key))
    if reason != PASS:
        return script.refuse(key, reason)
    if key.startswith("critic."):
        return set_key(script.recipe, f"marl.{key}", value)
    script.overrides.append(line)


def _harmless(values: Mapping[str, Any], key: str, value: Any) -> bool:
    """Whether a value is verl's default, switches off what is off by default, or is in a section that is off."""
    default = defaults().get(key)
    unset = key in defaults() and (default is None or (isinstance(default, str) and "${" in default))
    if (key in defaults() and value == default) or (unset and not value):
        return True
    names = key.split(".")
    for count in range(len(names), 0, -1):
        section = ".".join(names[:count])
        if section == "critic":  # whether it is on is a question of the estimator
            return False
        switch = SWITCHES.get(section)
        if switch is not None:
            return values.get(switch) in (None, False, *HARMLESS.get(switch, ()))
        switches = (f"{section}.{name}" for name in ("enable", "enabled"))
        switch = next((name for name in switches if name in defaults()), None)
        if switch not in (None, key):
            return not values.get(switch)
    return False


def _known(key: str) -> bool:
    """Whether verl's config or a run reads a key."""
    above = key.rpartition(".")[0]
    return (
        key in defaults()
        or bool(OPEN.fullmatch(key))
        or any(f"{key}.".startswith(f"{name}.") for name in ADDED)
        or (above in defaults() and defaults()[above] in ({}, None))
    )


def _unknown(key: str) -> str:
    parent, _, last = key.rpartition(".")
    beside = [name.rpartition(".")[2] for name in defaults() if name.rpartition(".")[0] == parent]
    hint = nearest(last, beside) if beside else ""
    return f"unknown keys: this version of verl has no '{key}'" + (f", {hint}" if hint.startswith("did") else "")


def _add_algorithm(script: Translation) -> bool:
    """Set algorithm and number of episodes from verl's keys. Returns whether the algorithm has critics."""
    section, key = script.recipe["marl"].setdefault("algorithm", {}), "algorithm.adv_estimator"
    name, estimator = section.get("name"), script.values.get(key)
    options = dict[str, Any]()
    if estimator is not None or name is None:
        estimator = str(estimator or defaults()[key])
        if estimator in WITHOUT:
            reason = f"{ESTIMATOR}; the nearest to {key}={estimator} is {key}={WITHOUT[estimator]}"
            script.refuse(key, reason)
            estimator = WITHOUT[estimator]
        elif estimator not in ESTIMATORS:
            raise MarlError(f"unknown '{key}={estimator}': {nearest(estimator, ESTIMATORS)}")
        elif key in script.values:
            script.take(key)
        algorithm, usual = ESTIMATORS[estimator]
        if name not in (None, algorithm):
            what = f"'{key}={estimator}' and 'marl.algorithm.name={name}' both choose the advantage"
            raise MarlError(f"{what}: remove the first one")
        name, options = algorithm, dict(usual)
        script.put("marl.sampler.options.episodes", script.values.get(f"{ROLLOUT}.n", 1))
    if estimator == "gdpo" and not script.values.get("algorithm.gdpo_reward_keys"):
        raise MarlError(f"'{key}=gdpo' needs algorithm.gdpo_reward_keys: the keys of the score that it normalises")
    critic = name in ("ippo", "mappo")
    read = {
        "gamma": critic,
        "lam": critic,
        "norm_adv_by_std_in_grpo": name in ("grpo", "gdpo") and estimator in (None, name),
    }
    read |= dict.fromkeys(("gdpo_reward_keys", "gdpo_reward_weights"), name == "gdpo")
    for setting, option in READ.items():
        if (where := f"algorithm.{setting}") not in script.values:
            continue
        if read[setting]:
            options[option] = script.take(where)
        elif not (setting == "gamma" and estimator == "reinforce_plus_plus"):
            script.drop(where)  # verl's estimator does not read it
    section |= {"name": name, "options": {**options, **section.get("options", {})}}
    return critic
