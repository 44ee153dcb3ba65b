"""The overrides of a verl script as a recipe: `python -m marl_verl.main_ppo key=value ...`.

Keys with a counterpart are translated; those that change nothing of what is trained are dropped, and verl's own that a
team passes on stay as they are. All others are refused together. Without a team in `marl.*`, it is one agent with
workflow `single`.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from marl_verl.config.compose import parse_overrides
from marl_verl.config.hardware import has_accelerator
from marl_verl.config.verl_keys import (
    ADDED,
    CHECKPOINT,
    DROP,
    ENGINE,
    ESTIMATOR,
    OPEN,
    PASS,
    REWARD,
    SERVER,
    key_paths,
    verdict,
    verl_defaults,
)
from marl_verl.errors import MarlError, nearest

ARR, ACTOR, ROLLOUT, REF = "actor_rollout_ref", *(f"actor_rollout_ref.{name}" for name in ("actor", "rollout", "ref"))
LEAVE_ONE_OUT = {"baseline": "leave-one-out", "norm_by_std": False}
ESTIMATORS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "grpo": ("grpo", {}),
    "grpo_vectorized": ("grpo", {}),
    "rloo": ("grpo", LEAVE_ONE_OUT),
    "rloo_vectorized": ("grpo", {**LEAVE_ONE_OUT, "singleton": "zero"}),
    "reinforce_plus_plus": ("reinforce++", {"std": "population"}),
    "reinforce_plus_plus_baseline": ("grpo", {"scale_group": "batch", "std": "population", "eps": 1e-8}),
    "gpg": ("grpo", {"scale_group": "batch", "std": "nonzero", "eps": 0.0}),
    "remax": ("remax", {}),
    "gdpo": ("gdpo", {}),
    "gae": ("ippo", {"returns.lam": 1.0}),  # verl's default
}
"""`algorithm.adv_estimator` -> (marl.algorithm.name, options of its advantage); docs/from-verl.md says where they
differ."""
READ: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "gamma": ("returns.gamma", ("gae",)),
    "lam": ("returns.lam", ("gae",)),
    "norm_adv_by_std_in_grpo": ("norm_by_std", ("grpo", "gdpo")),
    "gdpo_reward_keys": ("keys", ("gdpo",)),
    "gdpo_reward_weights": ("key_weights", ("gdpo",)),
}
"""Key of `algorithm` -> (option of the advantage, estimators that read it)."""
BUFFER = "reward.reward_kwargs.overlong_buffer_cfg"
MOVED: Mapping[str, str] = {
    "actor_rollout_ref.rollout.n": "marl.sampler.options.episodes",
    "actor_rollout_ref.rollout.val_kwargs.n": "marl.validation.options.episodes",
    "trainer.max_actor_ckpt_to_keep": "marl.checkpoint.keep",
    "reward_model.reward_manager": "reward.reward_manager.name",
    "reward_model.overlong_buffer": BUFFER,
    "reward.overlong_buffer": BUFFER,
    "reward_model.reward_kwargs": "reward.reward_kwargs",
    "reward_model.sandbox_fusion": "reward.sandbox_fusion",
    "reward_model.num_workers": "reward.num_workers",
    "sandbox_fusion": "reward.sandbox_fusion",
    "reward.sandbox_fusion.url": "marl.task.options.sandbox_url",
    "reward.sandbox_fusion.max_concurrent": "marl.task.options.sandbox_concurrent",
    "reward.sandbox_fusion.memory_limit_mb": "marl.task.options.sandbox_memory_mb",
    "custom_reward_function": "reward.custom_reward_function",
    "reward.custom_reward_function.reward_kwargs": "marl.task.reward_kwargs",
    **{
        f"data.{name}": f"marl.task.options.{name}"
        for name in ("train_files", "val_files", "prompt_key", "reward_fn_key", "train_max_samples", "val_max_samples")
    },
}
"""Keys and sections -> where they are in a team's config, or in verl's own."""
FUNCTION = "reward.custom_reward_function"
ALLOWED_VALUES: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys((f"{ACTOR}.strategy", f"{REF}.strategy", "critic.strategy"), ("fsdp", "fsdp2")),
    f"{ROLLOUT}.name": ("vllm",),
}
"""Keys that a team passes on with these values only."""
HARMLESS: Mapping[str, tuple[Any, ...]] = {
    "model_engine": ("dp", "fsdp"),
    "trainer.resume_mode": ("auto", "disable"),
    "trainer.v1.trainer_mode": ("sync",),
    "actor_rollout_ref.rollout.agent.default_agent_loop": ("single_turn_agent",),
    "reward.reward_manager.name": ("naive", "dapo", "prime", "batch", "limited", "remote", "gdpo"),
    "reward.reward_manager.source": ("register",),
}
"""Values, other than verl's default, of keys that are refused with a third one."""
SWITCHES = {
    "algorithm.kl_ctrl": "algorithm.use_kl_in_reward",
    "algorithm.kl_penalty": "algorithm.use_kl_in_reward",
    "algorithm.pf_ppo": "algorithm.use_pf_ppo",
    "trainer.resume_from_path": "trainer.resume_mode",
}
"""A key or section -> the key without which it has no effect. Other sections have a key `enable` or `enabled`."""
VERLS = {
    "data.train_batch_size": 1024,
    **{"trainer.total_epochs": 30, "trainer.total_training_steps": None},
    **{"trainer.save_freq": -1, "trainer.test_freq": -1},
}
"""verl's defaults, which differ from those of a recipe."""
AT_THE_END = 1_000_000
"""Steps between validations, of which the last step has one anyway: a run has at least one."""
ROUNDS = 16
"""Rounds of further tasks, at most, also where verl has no limit (`max_num_gen_batches` 0)."""
AGENT, POOL, SHARE, ADDRESS = "solver", "gpus", "rollout.gpu_memory_utilization", "ray_kwargs.ray_init.address"


@functools.cache
def defaults() -> dict[str, Any]:
    """Every key of verl's own config with its default, where an interpolation is a text."""
    return dict(key_paths(verl_defaults()))


@dataclass
class Script:
    """A verl script's overrides, and the recipe that they become.

    Attributes:
        values: the keys of verl that are left to translate -> their values; `lines` has them as overrides.
        overrides: of the recipe: what a recipe cannot have, such as removed keys.
        translated: (override of the script, what it became).
        dropped: overrides that change nothing of what is trained.
        refused: (reason, override) of those that cannot be honoured.
    """

    values: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, str] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=lambda: {"marl": {}})
    overrides: list[str] = field(default_factory=list)
    translated: list[tuple[str, str]] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)

    def number(self, key: str, default: Any = None) -> float:
        """A key's number in the script, else `default`, else verl's default. MarlError for another value."""
        value = self.values.get(key)
        if value is None:
            value = defaults().get(key) if default is None else default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise MarlError(f"'{key}={'' if value is None else value}' must be a number: write it in the script")
        return value

    def take(self, key: str) -> Any:
        """Remove a key and return its value."""
        self.lines.pop(key, None)
        return self.values.pop(key, None)

    def put(self, key: str, value: Any) -> None:
        """Set a key of the recipe's `marl` section that the script does not set itself."""
        set_key(self.recipe, key, value, keep=True)

    def add(self, key: str, value: Any) -> None:
        """Set a key of verl."""
        self.values[key], self.lines[key] = value, f"{key}={_text(value)}"

    def become(self, key: str, new: str, value: Any) -> None:
        """Replace a key by a key of a recipe, or by another key of verl, unless the script has that one, too."""
        if new in self.values:
            return self.drop(key)
        line = self.lines[key]
        self.take(key)
        (self.put if new.startswith("marl.") else self.add)(new, value)
        self.translated.append((line, f"{new}={_text(value)}"))

    def drop(self, *keys: str) -> None:
        for key in keys:
            if key in self.values:
                self.dropped.append(self.lines[key])
                self.take(key)

    def refuse(self, key: str, reason: str) -> None:
        self.refused.append((reason, self.lines[key]))
        self.take(key)

    def notes(self) -> list[str]:
        """One line of what was translated, and one of what was dropped."""
        changed = ", ".join(f"{old} -> {new}" for old, new in self.translated)
        notes = [f"translated: {changed}"] if changed else []
        return notes + (
            [f"dropped, it changes nothing of what is trained: {', '.join(self.dropped)}"] if self.dropped else []
        )

    def checked(self) -> tuple[dict[str, Any], list[str]]:
        """(recipe, overrides of it). MarlError with all keys that cannot be honoured, grouped by reason."""
        groups: dict[str, list[str]] = {}
        for reason, line in self.refused:
            groups.setdefault(reason, []).append(line)
        if groups:
            listed = "".join(f"\n  {reason}\n    {' '.join(lines)}" for reason, lines in groups.items())
            raise MarlError(f"{len(self.refused)} settings of the script cannot be honoured:{listed}")
        return self.recipe, self.overrides


def translate(overrides: Iterable[str]) -> Script:
    """What becomes of a verl script's overrides. MarlError for one that is not in Hydra's grammar."""
    script = Script()
    for change in parse_overrides(list(overrides)):
        _read(script, change)
    _set_data(script)
    waiting = [*script.values]
    for key in waiting:
        old = next((old for old in MOVED if f"{key}.".startswith(f"{old}.")), None)
        if old is None or (script.values.get(key) is None and MOVED[old].startswith("marl.")):
            continue
        new = MOVED[old] + key.removeprefix(old)
        script.become(key, new, script.values[key])
        waiting.append(new)  # some move twice
    critic = _set_algorithm(script)
    _set_reward(script)
    _set_training(script)
    _set_team(script)
    values = dict(script.values)
    for key in values:
        _settle(script, key, critic, values)
    for key, value in VERLS.items():
        set_key(script.recipe, key, value, keep=True)
    return script


def _read(script: Script, change: Any) -> None:
    """Sort an override into keys of `marl`, of verl, and whole files of verl's config; the last one of a key holds."""
    key, text = change.key_or_group, str(change.input_line)
    if change.package is not None:  # a file of verl's config, such as actor@actor_rollout_ref.actor=megatron_actor
        script.refused.append((ENGINE, text))
    elif change.is_delete() or key == "hardware":
        script.overrides.append(text)
    elif key.startswith("marl."):
        set_key(script.recipe, key, change.value())
    elif isinstance(content := change.value(), dict) and content and not OPEN.fullmatch(key):
        for path, leaf in key_paths(content, key):
            if not isinstance(leaf, dict) or not leaf:
                script.add(path, leaf)
    else:
        script.values[key], script.lines[key] = content, f"{key}={text.partition('=')[2]}"


def _set_algorithm(script: Script) -> bool:
    """Set algorithm and number of episodes from verl's keys. Returns whether the algorithm has critics."""
    section, key = script.recipe["marl"].setdefault("algorithm", {}), "algorithm.adv_estimator"
    name, estimator, options = section.get("name"), script.values.get(key), dict[str, Any]()
    if estimator is not None or name is None:
        estimator = str(estimator or defaults()[key])
        if estimator not in ESTIMATORS:
            raise MarlError(f"unknown '{key}={estimator}': {nearest(estimator, ESTIMATORS)}")
        script.take(key)
        algorithm, usual = ESTIMATORS[estimator]
        if name not in (None, algorithm):
            problem = f"'{key}={estimator}' and 'marl.algorithm.name={name}' both choose the advantage"
            raise MarlError(f"{problem}: remove the first one")
        name, options = algorithm, dict(usual)
        script.put("marl.sampler.options.episodes", 1)
        if estimator == "gdpo" and not script.values.get("algorithm.gdpo_reward_keys"):
            raise MarlError(f"'{key}=gdpo' needs algorithm.gdpo_reward_keys: the keys of the score that it normalises")
    critic = name in ("ippo", "mappo")
    for setting, (option, readers) in READ.items():
        if (where := f"algorithm.{setting}") in script.values:
            if (estimator or ("gae" if critic else name)) in readers:
                options[option] = script.take(where)
            elif setting == "gamma" and estimator == "reinforce_plus_plus":  # which reads it
                script.refuse(where, ESTIMATOR)
            else:
                script.drop(where)
    nested = OmegaConf.create()
    for option, value in options.items():
        OmegaConf.update(nested, f"advantage.{option}", value)
    section |= {"name": name, "options": OmegaConf.to_container(OmegaConf.merge(nested, section.get("options", {})))}
    if script.values.get(f"{ACTOR}.policy_loss.loss_mode", "vanilla") != "vanilla":
        script.put("marl.algorithm.options.loss", "verl")
    return critic


def _set_data(script: Script) -> None:
    """Files of rows are relative to the working directory; rows that are not shuffled are the first ones."""
    for key in ("data.train_files", "data.val_files"):
        if (files := script.values.get(key)) is not None:
            listed = files if isinstance(files, list) else [files]
            script.values[key] = [os.path.abspath(os.path.expanduser(str(file))) for file in listed]
    if script.values.get("data.shuffle") is False and any("_max_samples" in key for key in script.values):
        script.put("marl.task.options.shuffle", False)


def _set_reward(script: Script) -> None:
    """The score function, DAPO's penalty for long responses, and its filter of groups."""
    name = script.take(f"{FUNCTION}.name") or "compute_score"
    if path := script.values.get(f"{FUNCTION}.path"):
        script.become(f"{FUNCTION}.path", "marl.task.reward", f"{path}:{name}")
    enable, length, factor = (f"{BUFFER}.{name}" for name in ("enable", "len", "penalty_factor"))
    longest = "reward.reward_kwargs.max_resp_len"
    if not script.values.get(enable):
        script.drop(*(key for key in script.values if key.startswith((f"{BUFFER}.", longest))))
    elif script.values.get(length) is None:
        script.refuse(enable, REWARD)
    else:
        limit = "data.max_response_length" if script.values.get(longest) is None else longest
        overlong: dict[str, float] = {"L": int(script.number(limit)), "C": int(script.number(length))}
        if script.values.get(factor) not in (None, 1):
            overlong["factor"] = script.number(factor)
        script.become(enable, "marl.algorithm.options.advantage.overlong", overlong)
        for key in (length, factor, longest):
            script.take(key)
    groups = "algorithm.filter_groups"
    if script.values.get(f"{groups}.enable"):
        most = int(script.number(f"{groups}.max_num_gen_batches", 0))
        refill = min(most - 1, ROUNDS) if most > 0 else ROUNDS
        script.become(f"{groups}.enable", "marl.sampler.filter", {"no_variance": True, "refill": refill})
        for name in ("max_num_gen_batches", "metric", "max_inflight_gen_batches"):
            script.take(f"{groups}.{name}")


def _set_training(script: Script) -> None:
    """Prompts are filtered, never cut; micro-batches; what is saved; validations; and the run's directory and name."""
    truncation, filtered = "data.truncation", "data.filter_overlong_prompts"
    if script.values.get(filtered) or script.values.get(truncation) == "error":
        script.drop(truncation)
    elif truncation in script.values:
        script.drop(filtered)
        script.become(truncation, filtered, True)
    for part in (f"{ACTOR}.checkpoint.save_contents", "critic.checkpoint.save_contents"):
        if "model" not in (script.values.get(part) or ["model"]):
            script.drop(part)  # resuming and export need all parts
    actor, log_prob = f"{ACTOR}.use_dynamic_bsz", f"{ROLLOUT}.log_prob_use_dynamic_bsz"
    if script.values.get(f"{ACTOR}.ppo_micro_batch_size_per_gpu") is not None and actor not in script.values:
        script.add(actor, False)  # verl's default; with true, the size of a micro-batch has no effect
    if actor in script.values and log_prob not in script.values:
        script.add(log_prob, script.values[actor])
    section = "algorithm.rollout_correction."
    if script.values.get(f"{section}bypass_mode"):  # verl's V1 trainer reads the mode: PPO over the rollout's log-probs
        script.drop(*(key for key in script.values if key.startswith(section) and not key.endswith("bypass_mode")))
    key, test = "trainer.default_local_dir", "trainer.test_freq"
    set_key(script.recipe, "trainer.experiment_name", script.take("trainer.experiment_name"))
    if script.values.get(key):
        path = Path(os.path.abspath(os.path.expanduser(str(script.take(key)))))
        script.put("marl.run", {"dir": str(path.parent), "name": path.name})
    script.drop(key)
    if script.values.get("trainer.val_before_train") is False and script.number(test, -1) < 1:
        script.add(test, AT_THE_END)
        script.translated.append(("no validation", f"one at the end ({script.lines[test]})"))


def _set_team(script: Script) -> None:
    """Set task set, workflow, agents, policies and their pool where the script does not set them."""
    marl: dict[str, Any] = script.recipe["marl"]
    script.put("marl.task.name", "verl")
    if "agents" not in marl:
        script.put("marl.workflow.name", "single")
    agents = marl.setdefault("agents", {AGENT: {"policy": AGENT}})
    policies = marl.setdefault("policies", {})
    if isinstance(agents, dict) and isinstance(policies, dict):
        for agent in agents.values():
            if isinstance(agent, dict) and isinstance(agent.get("policy"), str):
                policies.setdefault(agent["policy"], {})
    gpus, nodes = (int(script.number(f"trainer.{key}", 1)) for key in ("n_gpus_per_node", "nnodes"))
    if nodes > 1 and ADDRESS not in script.values:  # the running cluster, as `ray.init` chooses it
        script.add(ADDRESS, "auto")
        script.translated.append((f"trainer.nnodes={nodes}", script.lines[ADDRESS]))
    if not (has_accelerator() or ADDRESS in script.values) or marl.get("pools") or not isinstance(policies, dict):
        return
    inside = [
        policy
        for policy in policies.values()
        if isinstance(policy, dict) and not policy.get("endpoint") and not policy.get("script")
    ]
    if len(inside) < 2:
        return
    groups = sum(not policy.get("base") for policy in inside) + any(policy.get("base") for policy in inside)
    marl["pools"] = {POOL: {"gpus": gpus, "nodes": nodes}}
    share = round(script.number(f"{ARR}.{SHARE}") / groups, 3)
    for policy in inside:
        policy["pool"] = POOL
        policy.setdefault("rollout", {}).setdefault("gpu_memory_utilization", share)
    if script.values.get(f"{ROLLOUT}.free_cache_engine") is False:
        script.drop(f"{ROLLOUT}.free_cache_engine")
    text = f"marl.pools.{POOL}={{gpus: {gpus}, nodes: {nodes}}}, {SHARE}={share:g} each"
    script.translated.append((f"the GPUs of the script, shared by {len(inside)} policies", text))


def _settle(script: Script, key: str, critic: bool, values: Mapping[str, Any]) -> None:
    """Pass a key on to verl, drop it, or refuse it; `values` are those of all keys."""
    value, reason = script.values[key], verdict(key)
    if value in HARMLESS.get(key, ()) or (key.startswith("critic.") and not critic):
        script.drop(key)
    elif value not in ALLOWED_VALUES.get(key, (value,)):
        script.refuse(key, SERVER if key.endswith("name") else ENGINE)
    elif key == "trainer.resume_mode":
        script.refuse(key, CHECKPOINT)
    elif reason == DROP or (reason != PASS and _harmless(values, key, value)):
        script.drop(key)
    elif reason != PASS or not _known(key):
        script.refuse(key, "this version of verl has no such key" if reason == PASS else reason)
    else:
        set_key(script.recipe, f"marl.{key}" if key.startswith("critic.") else key, value)


def _harmless(values: Mapping[str, Any], key: str, value: Any) -> bool:
    """Whether a value is verl's default, switches off what is off by default, or is in a section that is off."""
    usual = defaults()
    unset = key in usual and (usual[key] is None or "${" in str(usual[key]))
    if value == usual.get(key) or (unset and not value):
        return True
    names = key.split(".")
    for count in range(len(names), 0, -1):
        section = ".".join(names[:count])
        if section == "critic":  # whether it is on is a question of the estimator
            return False
        switches = SWITCHES.get(section), *(f"{section}.{name}" for name in ("enable", "enabled"))
        switch = next((switch for switch in switches if switch in usual), None)
        if switch not in (None, key):
            return not values.get(switch) or values[switch] in HARMLESS.get(switch, ())
    return False


def _known(key: str) -> bool:
    """Whether verl's config or a run reads a key."""
    above = defaults().get(key.rpartition(".")[0], 0)
    added = any(f"{key}.".startswith(f"{name}.") for name in ADDED)
    return key in defaults() or bool(OPEN.fullmatch(key)) or added or above in ({}, None)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def set_key(content: dict[str, Any], key: str, value: Any, keep: bool = False) -> None:
    """Set a dotted key of nested mappings; `keep`: not where it is set. MarlError for a key below a single value."""
    *sections, last = key.split(".")
    for section in sections:
        content = content.setdefault(section, {})
        if not isinstance(content, dict):
            raise MarlError(f"'{key}' cannot be set: '{section}' is a single value")
    before = content.get(last)
    if isinstance(before, dict) and isinstance(value, dict):
        content[last] = {**value, **before} if keep else {**before, **value}
    elif not (keep and last in content):
        content[last] = value
