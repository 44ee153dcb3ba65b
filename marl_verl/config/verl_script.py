"""The overrides of a verl script as a recipe: `python -m marl_verl.main_ppo key=value ...`.

Keys with a counterpart are translated, also those of verl 0.6 to 0.8; those that change nothing of what is trained are
dropped, and verl's own that a team passes on stay as they are. All others are refused together. Without a team in
`marl.*`, it is one agent with workflow `single`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from marl_verl.config.compose import parse_overrides
from marl_verl.config.dr_mas_script import add_dr_mas
from marl_verl.config.hardware import HARDWARE_VARIABLE, has_accelerator
from marl_verl.config.translation import Translation, defaults, set_key
from marl_verl.config.verl_keys import (
    ADDED,
    CHECKPOINT,
    DROP,
    ENGINE,
    ESTIMATOR,
    KL,
    OPEN,
    PASS,
    REWARD,
    SERVER,
    key_paths,
    verdict,
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
WITHOUT = dict.fromkeys(("opo", "optimal_token_baseline", "tir_optimal_token_baseline"), "rloo") | {
    "grpo_passk": "grpo"
}
"""Estimators of verl that marl-verl does not have -> the nearest one that it has."""
READ: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "gamma": ("returns.gamma", ("gae",)),
    "lam": ("returns.lam", ("gae",)),
    "norm_adv_by_std_in_grpo": ("norm_by_std", ("grpo", "gdpo")),
    "gdpo_reward_keys": ("keys", ("gdpo",)),
    "gdpo_reward_weights": ("key_weights", ("gdpo",)),
}
"""Key of `algorithm` -> (option of the advantage, estimators that read it)."""
KL_SETTINGS = ("kl_penalty", "kl_ctrl.type", "kl_ctrl.horizon", "kl_ctrl.target_kl")
BUFFER = "reward.reward_kwargs.overlong_buffer_cfg"
MOVED: Mapping[str, str] = {
    "actor_rollout_ref.rollout.n": "marl.sampler.options.episodes",
    "actor_rollout_ref.rollout.val_kwargs.n": "marl.validation.options.episodes",
    "trainer.max_actor_ckpt_to_keep": "marl.checkpoint.keep",
    "critic.model.fsdp_config": "critic.fsdp",
    "critic.ulysses_sequence_parallel_size": "critic.fsdp.ulysses_sequence_parallel_size",
    "critic.grad_clip": "critic.optim.clip_grad",
    "critic.optim.warmup_style": "critic.optim.lr_scheduler_type",
    f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size": f"{ACTOR}.ulysses_sequence_parallel_size",
    f"{REF}.fsdp_config.ulysses_sequence_parallel_size": f"{REF}.ulysses_sequence_parallel_size",
    f"{ACTOR}.grad_clip": f"{ACTOR}.optim.clip_grad",
    f"{ACTOR}.optim.warmup_style": f"{ACTOR}.optim.lr_scheduler_type",
    f"{ACTOR}.policy_loss.tau_pos": f"{ACTOR}.tau_pos",
    f"{ACTOR}.policy_loss.tau_neg": f"{ACTOR}.tau_neg",
    f"{ROLLOUT}.update_weights_bucket_megabytes": f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes",
    "reward_model.reward_manager": "reward.reward_manager.name",
    "reward_model.overlong_buffer": BUFFER,
    "reward.overlong_buffer": BUFFER,
    "reward_model.reward_kwargs": "reward.reward_kwargs",
    "reward_model.sandbox_fusion": "reward.sandbox_fusion",
    "reward_model.num_workers": "reward.num_workers",
    "sandbox_fusion": "reward.sandbox_fusion",
    "custom_reward_function": "reward.custom_reward_function",
}
"""Keys and sections -> where they are in a team's config."""
GLOBAL = (f"{ACTOR}.ppo", f"{ROLLOUT}.log_prob", f"{REF}.log_prob", "critic.ppo", "critic.forward")
"""`..._micro_batch_size` of verl 0.6 and before, of all GPUs."""
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
    **dict.fromkeys((f"{ACTOR}.strategy", f"{REF}.strategy", "critic.strategy"), (ENGINE, ("fsdp", "fsdp2"))),
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
ROUNDS = 16
"""Rounds of further tasks, at most, also where verl has no limit (`max_num_gen_batches` 0)."""
CONFIG_FLAGS = ("--config-path", "--config-name", "--config-dir")
AGENT, POOL, SHARE, ADDRESS = "solver", "gpus", "rollout.gpu_memory_utilization", "ray_kwargs.ray_init.address"
CLUSTER = Path("/tmp/ray/ray_current_cluster")
"""Where `ray start` writes the address of the cluster that runs on this machine."""


def translate(overrides: Iterable[str]) -> Translation:
    """What becomes of a verl script's overrides. MarlError for one that is not in Hydra's grammar."""
    script = Translation()
    _read(script, overrides)
    add_dr_mas(script)
    for key in [*script.values]:
        if (old := next((old for old in MOVED if f"{key}.".startswith(f"{old}.")), None)) and (
            script.values[key] is not None or not MOVED[old].startswith("marl.")
        ):
            script.become(key, MOVED[old] + key.removeprefix(old), script.values[key])
    for key in (f"{name}_micro_batch_size" for name in GLOBAL):
        if script.values.get(key) is not None:
            gpus = int(script.number("trainer.n_gpus_per_node", 1) * script.number("trainer.nnodes", 1))
            script.become(key, f"{key}_per_gpu", max(1, int(script.number(key)) // gpus))
    critic = _set_algorithm(script)
    _set_reward(script)
    _set_training(script)
    _set_run(script)
    _set_team(script)
    values = dict(script.values)
    for key in values:
        _settle(script, key, critic, values)
    trainer = {**TRAINER, "experiment_name": script.experiment}
    for section, usual in {"data": {"train_batch_size": 1024}, "trainer": trainer}.items():
        set_key(script.recipe, section, usual, keep=True)
    return script


def _read(script: Translation, overrides: Iterable[str]) -> None:
    """Sort overrides into keys of `marl`, of verl, and whole files of verl's config; the last one of a key holds."""
    words, plain = iter(overrides), []
    for word in words:
        flag, equals, _ = word.partition("=")
        if flag not in CONFIG_FLAGS:
            plain.append(word)
            continue
        line = word if equals else f"{word} {next(words, '')}"
        name = Path(re.split("[= ]", line, maxsplit=1)[1]).name.removesuffix(".yaml")
        if flag != "--config-name" or name == "ppo_trainer":
            script.dropped.append(line)
        else:
            megatron = re.fullmatch("ppo_.*_trainer", name)
            script.refused.append((ENGINE if megatron else "config files: write their keys as overrides", line))
    for change in parse_overrides(plain):
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


def _set_algorithm(script: Translation) -> bool:
    """Set algorithm and number of episodes from verl's keys. Returns whether the algorithm has critics."""
    section, key = script.recipe["marl"].setdefault("algorithm", {}), "algorithm.adv_estimator"
    name, estimator, options = section.get("name"), script.values.get(key), dict[str, Any]()
    if estimator is not None or name is None:
        estimator = str(estimator or defaults()[key])
        if (near := WITHOUT.get(estimator)) is not None:
            script.refuse(key, f"{ESTIMATOR}; the nearest to {key}={estimator} is {key}={near}")
            estimator = near
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
            elif not (setting == "gamma" and estimator == "reinforce_plus_plus"):  # which reads it, and is refused
                script.drop(where)
    nested = OmegaConf.create()
    for option, value in options.items():
        OmegaConf.update(nested, f"advantage.{option}", value)
    section |= {"name": name, "options": OmegaConf.to_container(OmegaConf.merge(nested, section.get("options", {})))}
    if script.get(f"{ACTOR}.policy_loss.loss_mode") != "vanilla":
        script.put("marl.algorithm.options.loss", "verl")
    return critic


def _set_reward(script: Translation) -> None:
    """DAPO's penalty for long responses and its filter of groups, and a KL penalty in the reward."""
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
    key, loss = "algorithm.use_kl_in_reward", f"{ACTOR}.use_kl_loss"
    if script.values.get(key):
        if script.values.get(loss) or script.get("algorithm.kl_ctrl.type") != "fixed":
            return script.refuse(key, KL)
        # a fixed penalty moves to the loss, with k2, whose gradient is that of the log-ratio
        script.drop(loss, f"{ACTOR}.kl_loss_coef", f"{ACTOR}.kl_loss_type")
        script.add(f"{ACTOR}.kl_loss_coef", script.get("algorithm.kl_ctrl.kl_coef"))
        script.note("algorithm.kl_ctrl.kl_coef", script.lines[f"{ACTOR}.kl_loss_coef"])
        script.become(key, loss, True)
        script.add(f"{ACTOR}.kl_loss_type", "k2")
        script.translated.append(("the KL penalty moves from the reward to the loss", f"{ACTOR}.kl_loss_type=k2"))
        script.drop(*(f"algorithm.{name}" for name in KL_SETTINGS))


def _set_training(script: Translation) -> None:
    """Prompts are filtered, never cut; micro-batches; what is saved; and what bypass mode does not read."""
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


def _set_run(script: Translation) -> None:
    """The run directory, the name in trackers, and a validation at the end of a script that has none."""
    key, test = "trainer.default_local_dir", "trainer.test_freq"
    script.experiment = script.take("trainer.experiment_name")
    if script.values.get(key):
        path = Path(os.path.abspath(os.path.expanduser(str(script.take(key)))))
        script.put("marl.run", {"dir": str(path.parent), "name": path.name})
    script.drop(key)
    if script.values.get("trainer.val_before_train") is False and script.number(test, -1) < 1:
        script.take(test)
        script.add(test, AT_THE_END)
        script.translated.append(("no validation", f"one at the end ({script.lines[test]})"))


def _set_team(script: Translation) -> None:
    """Set task set, workflow, agents, policies and their pool where the script does not set them.

    MarlError: several machines, and no running Ray cluster.
    """
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
        address = os.environ.get("RAY_ADDRESS")
        if address is None and not CLUSTER.exists() and HARDWARE_VARIABLE not in os.environ:
            remedy = "start Ray on them (ray start), and set RAY_ADDRESS or ray_kwargs.ray_init.address=auto"
            problem = f"'trainer.nnodes={nodes}' needs a Ray cluster of {nodes} machines, and none runs here"
            raise MarlError(f"{problem}: {remedy}")
        script.add(ADDRESS, "auto" if address is None or address.startswith("http") else address)
        script.translated.append((f"trainer.nnodes={nodes}", script.lines[ADDRESS]))
    if not (has_accelerator() or ADDRESS in script.values) or marl.get("pools") or not isinstance(policies, dict):
        return
    inside = {
        name: policy
        for name, policy in policies.items()
        if isinstance(policy, dict) and not policy.get("endpoint") and not policy.get("script")
    }
    if len(inside) < 2:
        return
    groups = {"shared" if policy.get("base") else f"policy {name}" for name, policy in inside.items()}
    marl["pools"] = {POOL: {"gpus": gpus, "nodes": nodes}}
    share = round(script.number(f"{ARR}.{SHARE}") / len(groups), 3)
    for policy in inside.values():
        policy["pool"] = POOL
        policy.setdefault("rollout", {}).setdefault("gpu_memory_utilization", share)
    if script.values.get(f"{ROLLOUT}.free_cache_engine") is False:
        script.drop(f"{ROLLOUT}.free_cache_engine")
    text = f"marl.pools.{POOL}={{gpus: {gpus}, nodes: {nodes}}}, {SHARE}={share:g} each"
    script.translated.append((f"the GPUs of the script, shared by {', '.join(inside)}", text))


def _settle(script: Translation, key: str, critic: bool, values: Mapping[str, Any]) -> None:
    """Pass a key on to verl, drop it, or refuse it; `values` are those of all keys."""
    value, reason = script.values[key], verdict(key)
    if key in VALUES and value not in VALUES[key][1]:
        return script.refuse(key, VALUES[key][0])
    if (key.startswith("critic.") and not critic) or value in HARMLESS.get(key, ()):
        return script.drop(key)
    if reason == DROP or (reason != PASS and _harmless(values, key, value)):
        return script.drop(key)
    if reason != PASS or not _known(key):
        return script.refuse(key, "this version of verl has no such key" if reason == PASS else reason)
    script.kept.append(script.lines[key])
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
