"""The overrides of a verl script as a recipe: `python -m marl_verl.main_ppo key=value ...`.

Keys with a counterpart are translated, those that change nothing of what is trained are dropped, and all others stay as
they are: composing the recipe checks them. Without a team in `marl.*`, it is one agent with workflow `single`.
"""

import functools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from marl_verl.config.compose import COMPOSED_BY_VERL, parse_overrides
from marl_verl.config.hardware import has_accelerator
from marl_verl.config.verl_keys import OPEN, PASS, VERDICTS, expanded, key_paths, verdict, verl_configs
from marl_verl.errors import MarlError, check_known
from marl_verl.extensions import required

ARR, ACTOR, ROLLOUT = "actor_rollout_ref", "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
LEAVE_ONE_OUT = {"baseline": "leave-one-out", "norm_by_std": False}
ESTIMATORS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "grpo": ("grpo", {}),
    "grpo_vectorized": ("grpo", {}),
    "rloo": ("grpo", LEAVE_ONE_OUT),
    "rloo_vectorized": ("grpo", {**LEAVE_ONE_OUT, "singleton": "zero"}),
    "reinforce_plus_plus": ("reinforce++", {"std": "population"}),
    "reinforce_plus_plus_baseline": ("grpo", {"scale_group": "batch", "std": "population", "eps": 1e-8}),
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
BUFFER, FUNCTION = "reward.reward_kwargs.overlong_buffer_cfg", "reward.custom_reward_function"
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
    "reward.sandbox_fusion.memory_limit_mb": "marl.task.options.sandbox_memory_mb",
    "custom_reward_function": FUNCTION,
    f"{FUNCTION}.reward_kwargs": "marl.task.reward_kwargs",
    **{
        f"data.{name}": f"marl.task.options.{name}"
        for name in ("train_files", "val_files", "prompt_key", "reward_fn_key", "train_max_samples", "val_max_samples")
    },
}
"""Keys and sections -> where they are in a team's config, or in verl's own; in this order, since some move twice."""
HARMLESS: Mapping[str, tuple[Any, ...]] = {
    "model_engine": ("dp", "fsdp"),
    "trainer.resume_mode": ("auto", "disable"),
    "reward.reward_manager.name": ("naive", "dapo", "prime", "batch", "limited", "remote", "gdpo"),
}
"""Values, other than verl's default, of keys that are refused with a third one."""
DROPPED = """
    learner.profiler ref.profiler rollout.profiler global_profiler ray_kwargs.timeline_json_file rollout.trace
    rollout.prometheus transfer_queue.metrics transfer_queue.backend skip hydra
    trainer.log_val_generations trainer.rollout_data_dir trainer.validation_data_dir trainer.balance_batch
    trainer.max_critic_ckpt_to_keep trainer.default_hdfs_dir trainer.del_local_ckpt_after_load
    trainer.esi_redundant_time trainer.ray_wait_register_center_timeout trainer.use_legacy_worker_impl trainer.use_v1
    data.filter_overlong_prompts_workers data.validation_shuffle data.use_shm data.trust_remote_code
    data.return_raw_chat data.return_raw_input_ids data.return_full_prompt data.return_multi_modal_inputs
    data.gen_batch_size models.use_shm models.tiled_mlp actor.use_prefix_grouper actor.freeze_vision_tower
    actor.use_remove_padding actor.use_fused_kernels forward.use_torch_compile actor_rollout_ref.nccl_timeout
    actor.calculate_sum_pi_squared learner.checkpoint.async_save actor.checkpoint.strict
    learner.rollout_n ref.rollout_n learner.optim.total_training_steps
    rollout.mode rollout.multi_stage_wake_up rollout.skip_tokenizer_init rollout.moe_load_balance_metrics_interval
    reward_model.launch_reward_fn_async reward.reward_kwargs.overlong_buffer_cfg.log
"""
"""Keys and sections that change nothing of what is trained."""
DROP = "drop"
OUTCOMES: Mapping[str, str] = {**VERDICTS, **dict.fromkeys(expanded(DROPPED), DROP)}
SWITCHES = {
    "algorithm.kl_ctrl": "algorithm.use_kl_in_reward",
    "algorithm.kl_penalty": "algorithm.use_kl_in_reward",
    "algorithm.pf_ppo": "algorithm.use_pf_ppo",
    "trainer.resume_from_path": "trainer.resume_mode",
}
"""A key or section -> the key without which it has no effect. Other sections have a key `enable` or `enabled`."""
VERLS = (
    *("data.train_batch_size", "trainer.total_epochs", "trainer.total_training_steps", "trainer.save_freq"),
    "trainer.test_freq",
)
"""Keys whose defaults in verl differ from those of a recipe."""
AGENT, POOL, SHARE, ADDRESS = "solver", "gpus", "rollout.gpu_memory_utilization", "ray_kwargs.ray_init.address"


class Script:
    """The overrides of a verl script, and the recipe that they become."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.values: dict[str, Any] = {}  # key of verl that is left to translate -> its value
        self.recipe: DictConfig = OmegaConf.create({"marl": {}})
        self.overrides: list[str] = []  # of the recipe: removed keys, and whole files of verl's config
        self.dropped: list[str] = []  # settings that change nothing of what is trained
        for change in parse_overrides(list(lines)):  # the last one of a key holds
            key, content = change.key_or_group, change.value()
            if change.package is not None or change.is_delete() or key == "hardware":
                self.overrides.append(str(change.input_line))
            elif key.startswith("marl."):
                OmegaConf.update(self.recipe, key, content, force_add=True)
            elif isinstance(content, dict) and content and not OPEN.fullmatch(key):
                leaves = key_paths(content, key)
                self.values |= {path: leaf for path, leaf in leaves if not isinstance(leaf, dict) or not leaf}
            else:
                self.values[key] = content

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key in the script, else `default`, else verl's default."""
        values = self.values.get(key), default, verl_defaults().get(key)
        return next((value for value in values if value is not None), None)

    def put(self, key: str, value: Any) -> None:
        """Set a key of the recipe that the script does not set itself."""
        if isinstance(value, dict) and value:
            for name, item in value.items():
                self.put(f"{key}.{name}", item)
        elif OmegaConf.select(self.recipe, key) is None:
            OmegaConf.update(self.recipe, key, value, force_add=True)

    def drop(self, *keys: str) -> None:
        values = {key: self.values.pop(key) for key in keys if key in self.values}
        self.dropped += [
            f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in values.items()
        ]


def translate(overrides: Iterable[str]) -> tuple[dict[str, Any], list[str], list[str]]:
    """(recipe, overrides of it, settings that were dropped) for a verl script's overrides. MarlError for an override
    that is not in Hydra's grammar, or an unknown estimator."""
    script = Script(overrides)
    _move(script)
    critic = _set_algorithm(script)
    _set_reward(script)
    _set_training(script)
    _set_team(script)
    if script.values.pop("distillation.enabled", False):
        required("teacher", "teacher", "distillation.enabled=true", "teacher").translate(script)
    for key, value in list(script.values.items()):
        if (key.startswith("critic.") and not critic) or _changes_nothing(script.values, key):
            script.drop(key)
        else:
            where = f"marl.{key}" if key.startswith("critic.") else key
            OmegaConf.update(script.recipe, where, value, force_add=True)
    for key in VERLS:
        script.put(key, verl_defaults()[key])
    recipe: Any = OmegaConf.to_container(script.recipe)
    return recipe, script.overrides, script.dropped


def _move(script: Script) -> None:
    """Move keys to their places. Files of rows are relative to the working directory; unshuffled rows are the first."""
    for key in ("data.train_files", "data.val_files"):
        if (files := script.values.get(key)) is not None:
            listed = files if isinstance(files, list) else [files]
            script.values[key] = [str(Path(file).expanduser().absolute()) for file in listed]
    if script.values.get("data.shuffle") is False and any("_max_samples" in key for key in script.values):
        script.put("marl.task.options.shuffle", False)
    for old, new in MOVED.items():
        for key in [key for key in script.values if f"{key}.".startswith(f"{old}.")]:
            target = new + key.removeprefix(old)
            if not new.startswith("marl."):
                script.values.setdefault(target, script.values.pop(key))
            elif script.values[key] is not None:
                script.put(target, script.values.pop(key))


def _set_algorithm(script: Script) -> bool:
    """Set algorithm and number of episodes from verl's keys. Returns whether the algorithm has critics."""
    key, section = "algorithm.adv_estimator", "marl.algorithm"
    name, estimator = OmegaConf.select(script.recipe, f"{section}.name"), script.values.pop(key, None)
    options: dict[str, Any] = {}
    if estimator is not None or name is None:
        estimator = estimator or verl_defaults()[key]
        check_known(key, estimator, ESTIMATORS)
        algorithm, usual = ESTIMATORS[estimator]
        if name not in (None, algorithm):
            problem = f"'{key}={estimator}' and 'marl.algorithm.name={name}' both choose the advantage"
            raise MarlError(f"{problem}: remove the first one")
        name, options = algorithm, dict(usual)
        script.put("marl.sampler.options.episodes", 1)
    critic = name in ("ippo", "mappo")
    reader = estimator or ("gae" if critic else None)
    for word, (option, readers) in READ.items():
        if (where := f"algorithm.{word}") in script.values:
            if (reader or name) in readers:
                options[option] = script.values.pop(where)
            # kept, and refused unless it is the default: verl reads the first one, others here have an option for it
            elif (word, reader) not in (("gamma", "reinforce_plus_plus"), ("norm_adv_by_std_in_grpo", None)):
                script.drop(where)
    OmegaConf.update(script.recipe, f"{section}.name", name, force_add=True)
    for option, value in options.items():
        script.put(f"{section}.options.advantage.{option}", value)
    bounds = [script.values.get(f"{ACTOR}.clip_ratio_{side}", 0) for side in ("low", "high")]  # null: verl's clip_ratio
    if OmegaConf.select(script.recipe, f"{section}.options.loss") is None and None not in bounds:
        script.drop(f"{ACTOR}.clip_ratio")  # verl's losses do not read it
    if script.get(f"{ACTOR}.policy_loss.loss_mode") != "vanilla":
        script.put("marl.algorithm.options.loss", "verl")
    return critic


def _set_reward(script: Script) -> None:
    """The score function, its sandbox, DAPO's penalty for long responses, and its filter of groups."""
    name = script.values.pop(f"{FUNCTION}.name", None) or "compute_score"
    if path := script.values.pop(f"{FUNCTION}.path", None):
        script.put("marl.task.reward", f"{path}:{name}")
    if url := script.values.pop("reward.sandbox_fusion.url", None):
        script.put("marl.run.sandbox", f"external:{url}")
    script.drop("reward.sandbox_fusion.max_concurrent")
    enable, length, factor = (f"{BUFFER}.{name}" for name in ("enable", "len", "penalty_factor"))
    longest = "reward.reward_kwargs.max_resp_len"
    if not script.values.get(enable):
        script.drop(*(key for key in script.values if key.startswith(f"{BUFFER}.")), longest)
    elif script.values.get(length) is not None:
        limit = script.get(longest, script.get("data.max_response_length"))
        overlong: dict[str, float] = {"L": int(limit), "C": int(script.values[length])}
        if script.values.get(factor) not in (None, 1):
            overlong["factor"] = script.values[factor]
        script.put("marl.algorithm.options.advantage.overlong", overlong)
        for key in (enable, length, factor, longest):
            script.values.pop(key, None)
    groups = "algorithm.filter_groups"
    if script.values.get(f"{groups}.enable"):
        most = int(script.get(f"{groups}.max_num_gen_batches", 0))
        script.put("marl.sampler.filter", {"no_variance": True, "refill": most - 1 if most > 0 else None})
        for name in ("enable", "max_num_gen_batches", "metric", "max_inflight_gen_batches"):
            script.values.pop(f"{groups}.{name}", None)


def _set_training(script: Script) -> None:
    """Prompts are filtered, never cut; micro-batches; what is saved; validations; and the run's directory and name."""
    truncation, filtered = "data.truncation", "data.filter_overlong_prompts"
    if script.values.get(truncation, "error") != "error":
        script.values[filtered] = True
    script.drop(truncation)
    for part in (f"{ACTOR}.checkpoint.save_contents", "critic.checkpoint.save_contents"):
        if not {"model", "optimizer", "extra"} <= {*(script.values.get(part) or ["model", "optimizer", "extra"])}:
            script.drop(part)  # resuming and export need all parts
    if script.values.get(f"{ACTOR}.ppo_micro_batch_size_per_gpu") is not None:
        # verl's default; with true, the size of a micro-batch has no effect
        script.values.setdefault(f"{ACTOR}.use_dynamic_bsz", False)
    section = "algorithm.rollout_correction."
    if script.values.get(f"{section}bypass_mode"):  # verl's V1 trainer reads the mode: PPO over the rollout's log-probs
        script.drop(*(key for key in script.values if key.startswith(section) and key != f"{section}bypass_mode"))
    script.put("trainer.experiment_name", script.values.pop("trainer.experiment_name", None))
    folder = "trainer.default_local_dir"
    if script.values.get(folder):
        path = Path(script.values.pop(folder)).expanduser().absolute()
        script.put("marl.run", {"dir": str(path.parent), "name": path.name})
    script.drop(folder)


def _set_team(script: Script) -> None:
    """Set task set, workflow, agents, policies and their pool where the script does not set them."""
    script.put("marl.task.name", "verl")
    if "agents" not in script.recipe.marl:
        script.put("marl.workflow.name", "single")
        script.put("marl.agents", {AGENT: {"policy": AGENT}})
    for agent in script.recipe.marl.agents.values():
        if "policy" in agent:
            script.put(f"marl.policies.{agent.policy}", {})
    policies, pools = script.recipe.marl.policies, script.recipe.marl.get("pools")
    gpus, nodes = (script.get(f"trainer.{key}", 1) for key in ("n_gpus_per_node", "nnodes"))
    if nodes > 1 and ADDRESS not in script.values:  # the running cluster, as `ray.init` chooses it
        script.values[ADDRESS] = "auto"
    inside = [name for name, policy in policies.items() if not policy.get("endpoint") and not policy.get("script")]
    if not (has_accelerator() or ADDRESS in script.values) or pools or len(inside) < 2:
        return
    shared = sum(bool(policies[name].get("base")) for name in inside)
    groups = len(inside) - shared + bool(shared)
    script.put(f"marl.pools.{POOL}", {"gpus": gpus, "nodes": nodes})
    share = round(script.get(f"{ARR}.{SHARE}") / groups, 3)
    for name in inside:
        OmegaConf.update(script.recipe, f"marl.policies.{name}.pool", POOL, force_add=True)
        script.put(f"marl.policies.{name}.{SHARE}", share)
    if script.values.get(f"{ROLLOUT}.free_cache_engine") is False:
        script.drop(f"{ROLLOUT}.free_cache_engine")


def _changes_nothing(values: Mapping[str, Any], key: str) -> bool:
    """Whether a setting has no effect: by its key, or with verl's default, or because its section is switched off."""
    known, value = verl_defaults(), values[key]
    outcome = verdict(key, OUTCOMES)
    if outcome == DROP or value in HARMLESS.get(key, ()):
        return True
    if outcome == PASS:
        return False
    usual = known.get(key)
    if value == usual or (not value and (usual is None or "${" in str(usual))):
        return True
    names = key.split(".")
    for section in (".".join(names[:count]) for count in range(len(names), 0, -1)):
        switches = SWITCHES.get(section), f"{section}.enable", f"{section}.enabled"
        switch = next((switch for switch in switches if switch in known), None)
        if switch not in (None, key):
            return not values.get(switch) or values[switch] in HARMLESS.get(switch, ())
    return False


@functools.cache
def verl_defaults() -> dict[str, Any]:
    """Every key and section of verl's own config -> its default, in which an interpolation is a text."""
    return dict(key_paths(yaml.safe_load((verl_configs() / COMPOSED_BY_VERL).read_text(encoding="utf-8"))))
