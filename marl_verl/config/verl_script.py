"""The overrides of a verl script as a recipe: `python -m marl_verl.main_ppo key=value ...`.

Keys that a team has another key for are translated, keys that do not apply to it are refused with what replaces them,
and all others are verl's own and stay as they are. Without a team in `marl.*`, it is one agent with workflow `single`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override

from marl_verl.config import unused
from marl_verl.config.compose import key_paths, parse_overrides
from marl_verl.config.unused import UNUSED
from marl_verl.errors import MarlError, nearest

AGENT, ACTOR, ROLLOUT = "solver", "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
ESTIMATORS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "grpo": ("grpo", {}),
    "grpo_vectorized": ("grpo", {}),
    "rloo": ("grpo", {"baseline": "leave-one-out", "norm_by_std": False}),
    "rloo_vectorized": ("grpo", {"baseline": "leave-one-out", "norm_by_std": False, "singleton": "zero"}),
    "reinforce_plus_plus": ("reinforce++", {"std": "population"}),
    "reinforce_plus_plus_baseline": ("grpo", {"scale_group": "batch", "std": "population", "eps": 1e-8}),
    "gae": ("ippo", {"lam": 1.0}),  # verl's default
}
"""`algorithm.adv_estimator` -> (marl.algorithm.name, its options); docs/from-verl.md says where they differ."""
WITHOUT = {
    "remax": "rloo",
    "opo": "rloo",
    "gpg": "rloo",
    "grpo_passk": "grpo",
    "gdpo": "grpo",
    "optimal_token_baseline": "rloo",
    "tir_optimal_token_baseline": "rloo",
}
"""Estimators of verl that marl-verl does not have -> the nearest one that it has."""
RENAMED = {
    "actor_rollout_ref.rollout.n": "marl.sampler.options.episodes",
    "actor_rollout_ref.rollout.val_kwargs.n": "marl.validation.options.episodes",
    "trainer.max_actor_ckpt_to_keep": "marl.checkpoint.keep",
}
REFUSED = {  # a key, or a section with all its keys, that may only have verl's default -> what replaces it
    **{name: why for names, why in UNUSED.items() for name in names.split()},
    "algorithm.use_kl_in_reward": "a team's KL penalty is actor_rollout_ref.actor.use_kl_loss=true with kl_loss_coef",
    "data.custom_cls": "register a task set (docs/plugins.md)",
    "actor_rollout_ref.actor.ppo_micro_batch_size": "set actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size": "set its log_prob_micro_batch_size_per_gpu",
    "actor_rollout_ref.ref.log_prob_micro_batch_size": "set its log_prob_micro_batch_size_per_gpu",
    "actor_rollout_ref.rollout.agent.agent_loop_config_path": "what an agent does is marl.workflow",
    "critic.enable": "algorithm.adv_estimator=gae (or marl.algorithm.name=ippo or mappo) has a critic",
    "critic.ppo_micro_batch_size": "set critic.ppo_micro_batch_size_per_gpu",
    "critic.grad_clip": "verl's FSDP engine clips at critic.optim.clip_grad",
    "trainer.critic_warmup": "a team's critics have none",
    "trainer.val_only": "`marl-verl eval RUN` evaluates a run",
    "trainer.resume_mode": "a run is continued by `marl-verl train --resume RUN`",
    "trainer.use_v1": "teams are trained by verl's V1 trainer",
    "trainer.v1": "set marl.schedule.mode to sync or async",
    "hydra": "a run is written to marl.run.dir, and nothing else",
}
MOVED = {"critic.model.fsdp_config": "critic.fsdp", "reward_model.reward_manager": "reward.reward_manager.name"}
"""Keys of older versions of verl -> where they are in this one."""
OF_ALGORITHM = ("algorithm.adv_estimator", "algorithm.norm_adv_by_std_in_grpo", "algorithm.gamma", "algorithm.lam")
OF_RUN = ("trainer.default_local_dir", "trainer.experiment_name")
BATCH = {"train_batch_size": 1024}
TRAINER = {"total_epochs": 30, "total_training_steps": None, "save_freq": -1, "test_freq": -1}
"""verl's defaults, which differ from those of a recipe."""


def from_script(overrides: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """(recipe, overrides of it) of a verl script's overrides. MarlError for a key that does not apply to a team."""
    given: dict[str, Override] = {}
    for change in parse_overrides(overrides):
        given.pop(change.key_or_group, None)  # the last one holds
        given[change.key_or_group] = change
    values = {key: change.value() for key, change in given.items() if not change.is_delete()}
    recipe: dict[str, Any] = {"marl": {}}
    rest: list[str] = []
    for key, change in given.items():
        if key.startswith("marl.") and key in values:
            _set(recipe, key, values[key])
        elif key in RENAMED:
            _set(recipe, RENAMED[key], values[key])
        elif key not in OF_RUN and (section := _refused(key)) is not None:
            if not _default(key, values.get(key)):
                raise MarlError(f"'{change.input_line}' does not apply to a team: {REFUSED[section]}")
        elif key.startswith("critic."):
            _set(recipe, f"marl.{key}", values[key])
        elif key not in (*OF_ALGORITHM, *OF_RUN):
            rest.append(str(change.input_line))
    marl = recipe["marl"]
    _add_algorithm(marl, values)
    _add_team(marl)
    if (folder := values.get("trainer.default_local_dir")) is not None:
        path = Path(os.path.abspath(os.path.expanduser(str(folder))))
        marl["run"] = {"dir": str(path.parent), "name": path.name, **marl.get("run", {})}
    actor, log_prob = f"{ACTOR}.use_dynamic_bsz", f"{ROLLOUT}.log_prob_use_dynamic_bsz"
    if values.get(f"{ACTOR}.ppo_micro_batch_size_per_gpu") is not None and actor not in values:
        values[actor] = False  # verl's default; with true, the size of a micro-batch has no effect
        rest.append(f"{actor}=false")
    if actor in values and log_prob not in values:
        rest.append(f"{log_prob}={str(values[actor]).lower()}")
    trainer = {**TRAINER, "experiment_name": values.get("trainer.experiment_name")}
    return {**recipe, "data": BATCH, "trainer": trainer}, rest


@functools.cache
def verl_defaults() -> dict[str, Any]:
    """Every key of verl's own config with its default, where an interpolation is a text."""
    return dict(key_paths(unused.verl_defaults()))


def _refused(key: str) -> str | None:
    """The section of `REFUSED` that a key is in. MarlError for a key that has moved in this version of verl."""
    for old, new in MOVED.items():
        if key == old or key.startswith(f"{old}."):
            raise MarlError(f"unknown key '{key}': in this version of verl it is {new}{key.removeprefix(old)}")
    return next((name for name in REFUSED if key == name or key.startswith(f"{name}.")), None)


def _default(key: str, value: Any) -> bool:
    """Whether a value is verl's default, or switches off what is off by default."""
    default = verl_defaults().get(key)
    unset = default is None or (isinstance(default, str) and "${" in default)
    return bool(value == default or (unset and not value))


def _add_algorithm(marl: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Set algorithm and number of episodes from verl's keys. MarlError for an estimator without a counterpart."""
    section, estimator = marl.setdefault("algorithm", {}), values.get("algorithm.adv_estimator")
    name, options = section.get("name"), dict[str, Any]()
    if estimator is not None or name is None:
        found, options = _estimator(str(estimator or verl_defaults()["algorithm.adv_estimator"]))
        if name not in (None, found):
            what = f"'algorithm.adv_estimator={estimator}' and 'marl.algorithm.name={name}' both choose the advantage"
            raise MarlError(f"{what}: remove the first one")
        name = found
        marl.setdefault("sampler", {}).setdefault("options", {}).setdefault("episodes", 1)
    critic = name in ("ippo", "mappo")
    compared = name == "grpo" and estimator in (None, "grpo")  # verl's other estimators do not read it
    of = {"norm_adv_by_std_in_grpo": ("norm_by_std", compared), "gamma": ("gamma", critic), "lam": ("lam", critic)}
    for key, (option, applies) in of.items():
        value = values.get(f"algorithm.{key}")
        if applies and value is not None:
            options[option] = value
        elif value not in (None, 1):  # 1 and true: verl's defaults
            what = f"'algorithm.{key}={value}' has no effect on algorithm '{name}'"
            raise MarlError(f"{what}: remove it, or set an option of marl.algorithm.options")
    section.update({"name": name, "options": {**options, **section.get("options", {})}})


def _estimator(name: str) -> tuple[str, dict[str, Any]]:
    if name in WITHOUT:
        near = f"The nearest one is algorithm.adv_estimator={WITHOUT[name]}."
        raise MarlError(f"'algorithm.adv_estimator={name}': marl-verl does not have this estimator. {near}")
    if name not in ESTIMATORS:
        raise MarlError(f"unknown 'algorithm.adv_estimator={name}': {nearest(name, ESTIMATORS)}")
    algorithm, options = ESTIMATORS[name]
    return algorithm, dict(options)


def _add_team(marl: dict[str, Any]) -> None:
    """Set task set, workflow, agents and policies where they are not given."""
    marl.setdefault("task", {}).setdefault("name", "verl")
    if "agents" not in marl:
        marl.setdefault("workflow", {}).setdefault("name", "single")
    agents = marl.setdefault("agents", {AGENT: {"policy": AGENT}})
    if "policies" not in marl and isinstance(agents, dict):
        named = [agent.get("policy") for agent in agents.values() if isinstance(agent, dict)]
        marl["policies"] = {name: {} for name in named if isinstance(name, str)}


def _set(content: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key of nested mappings. MarlError for a key below a single value."""
    *sections, last = key.split(".")
    for section in sections:
        content = content.setdefault(section, {})
        if not isinstance(content, dict):
            raise MarlError(f"'{key}' cannot be set: '{section}' is a single value")
    before = content.get(last)
    content[last] = {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value
