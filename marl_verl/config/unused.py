"""Keys of verl that have no effect on a team: they may only have verl's default, and each says what replaces it."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from marl_verl.config.recipe_file import verl_configs
from marl_verl.errors import MarlError, shown
from marl_verl.team import TeamConfig

JUDGE = "a judge is an agent of the team, with a frozen policy or an endpoint (docs/teams.md)"
SCORE = "a function that scores answers is marl.task.reward"
OVERLONG = f"{SCORE}; DAPO's overlong penalty is marl.algorithm.options.overlong"
TASKS, CHAT, TEXT = "a team's tasks are marl.task", "agents are always shown chat messages", "agents see text only"
TOOLS = "tools are functions that the workflow calls (team.call)"
KL = "a team's KL penalty is actor_rollout_ref.actor.use_kl_loss=true with kl_loss_coef"
RESUME = "a run is continued by marl-verl train --resume RUN"
KEPT = "a checkpoint is that of the whole team: set marl.checkpoint.keep"
REPLAY = "`marl-verl replay --run RUN` shows a run's episodes"
TIMES = "workers are not profiled: seconds/* in metrics.jsonl are the times of a step"
SCHEDULE = "set marl.schedule"
LENGTH = "an observation that is too long fails its episode; data.filter_overlong_prompts=true drops such tasks"
STEPS = "set trainer.total_training_steps"
METRICS = "no server of metrics is started (docs/security.md)"
QAT = "marl-verl has no training with quantisation"
FSDP = "policies are trained by verl's FSDP engine"
TEXT_ROWS = "agents see text only, and every row is computed for itself"
SERVERS = "a policy's servers are on the GPUs of its training workers"
ATTEMPTS = "the number of attempts per task is in marl.sampler.options"
LORA = "it is for Megatron: set model.lora_rank, lora_alpha, target_modules, exclude_modules"


def _lora(model: str) -> str:
    """The keys of a model's `lora` section, but `rank`, which has a message of its own, and `merge`, which is used."""
    names = "type alpha dropout target_modules exclude_modules dropout_position lora_A_init_method lora_B_init_method"
    others = "a2a_experimental dtype adapter_path freeze_vision_model freeze_vision_projection freeze_language_model"
    return " ".join(f"{model}.lora.{name}" for name in f"{names} {others}".split())


UNUSED = {  # keys or sections, separated by spaces -> what to use instead
    "reward.reward_manager reward_model.reward_manager": OVERLONG,
    "reward.reward_model reward_model": JUDGE,
    "sandbox_fusion": "set reward.sandbox_fusion",
    "data.gen_batch_size": "a step samples data.train_batch_size tasks",
    "data.tool_config_path data.function_tool_path": TOOLS,
    "data.return_raw_input_ids data.return_raw_chat data.return_full_prompt": CHAT,
    "data.image_key data.video_key data.audio_key data.image_patch_size data.return_multi_modal_inputs": TEXT,
    "data.mm_processor_kwargs": TEXT,
    "data.truncation": LENGTH,
    "data.tokenizer": "set actor_rollout_ref.model.tokenizer_path",
    "data.trust_remote_code": "set actor_rollout_ref.model.trust_remote_code",
    "data.use_shm": TASKS,
    "algorithm.filter_groups": "set marl.sampler.filter={no_variance: true}",
    "algorithm.kl_ctrl algorithm.kl_penalty": KL,
    "algorithm.use_pf_ppo algorithm.pf_ppo": "marl-verl has no reweighting of samples",
    "trainer.rollout_data_dir": "episodes are in journals/ of the run directory (marl.run.keep_journals)",
    "trainer.validation_data_dir": "episodes are in episodes/ of the run directory (marl.rollout.keep_episodes)",
    "trainer.log_val_generations actor_rollout_ref.rollout.trace": REPLAY,
    "trainer.resume_from_path": RESUME,
    "trainer.default_local_dir trainer.default_hdfs_dir": "a run is written to marl.run.dir",
    "trainer.max_actor_ckpt_to_keep trainer.max_critic_ckpt_to_keep trainer.del_local_ckpt_after_load": KEPT,
    "trainer.esi_redundant_time": "set trainer.save_freq",
    "trainer.checkpoint_callback_class": "a plugin's marl_step_finished is called after each step (docs/plugins.md)",
    "trainer.ray_wait_register_center_timeout": "marl-verl waits for its processes itself",
    "trainer.balance_batch": "rows are always balanced over ranks",
    "trainer.v1.sampler trainer.v1.sync trainer.v1.colocate_async trainer.v1.separate_async": SCHEDULE,
    "global_profiler actor_rollout_ref.actor.profiler actor_rollout_ref.ref.profiler": TIMES,
    "actor_rollout_ref.rollout.profiler critic.profiler ray_kwargs.timeline_json_file": TIMES,
    "actor_rollout_ref.model.mtp critic.model.mtp": "marl-verl has no multi-token prediction",
    "actor_rollout_ref.actor.qat actor_rollout_ref.actor.fsdp_config.qat": QAT,
    "actor_rollout_ref.ref.fsdp_config.qat critic.fsdp.qat": QAT,
    "actor_rollout_ref.actor.fsdp_config.turbo_config actor_rollout_ref.ref.fsdp_config.turbo_config": FSDP,
    "critic.fsdp.turbo_config": FSDP,
    "actor_rollout_ref.actor.checkpoint.async_save critic.checkpoint.async_save": FSDP,
    "actor_rollout_ref.actor.checkpoint.strict": FSDP,
    "actor_rollout_ref.model.tiled_mlp critic.model.tiled_mlp": FSDP,
    "actor_rollout_ref.actor.rollout_n actor_rollout_ref.ref.rollout_n critic.rollout_n": ATTEMPTS,
    "critic.ulysses_sequence_parallel_size": "set critic.fsdp.ulysses_sequence_parallel_size",
    "actor_rollout_ref.actor.freeze_vision_tower actor_rollout_ref.actor.use_prefix_grouper": TEXT_ROWS,
    "actor_rollout_ref.rollout.prometheus transfer_queue.metrics": METRICS,
    "transfer_queue.backend.storage_backend transfer_queue.backend.MooncakeStore": "rows are kept in SimpleStorage",
    "actor_rollout_ref.rollout.disaggregation": "verl supports it with SGLang only",
    "actor_rollout_ref.rollout.multi_turn": "a team's turns are those of its workflow (marl.workflow)",
    "actor_rollout_ref.rollout.agent.default_agent_loop": "what an agent does is marl.workflow",
    "critic.forward_micro_batch_size": "set critic.forward_micro_batch_size_per_gpu",
    "actor_rollout_ref.actor.optim.total_training_steps critic.optim.total_training_steps": STEPS,
    "actor_rollout_ref.hybrid_engine": SERVERS,
    "critic.enable": "algorithms with a critic are ippo and mappo (marl.algorithm.name)",
    "actor_rollout_ref.actor.calculate_sum_pi_squared": "it is for verl's optimal token baseline",
    "actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module": SERVERS,
    "actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs": SERVERS,
    "actor_rollout_ref.rollout.agent.custom_async_server": "a team is served by vLLM",
    "actor_rollout_ref.rollout.ignore_eos": "an action ends with the model's end token",
    "actor_rollout_ref.rollout.enable_rollout_routing_replay": "training does not repeat the choice of experts",
    "actor_rollout_ref.rollout.nnodes actor_rollout_ref.rollout.n_gpus_per_node": "set those of trainer, or marl.pools",
    "actor_rollout_ref.rollout.skip_tokenizer_init": "vLLM's servers have a tokenizer, which stop strings need",
    "actor_rollout_ref.rollout.moe_load_balance_metrics_interval": "metrics.jsonl has no values of experts",
    "actor_rollout_ref.rollout.multi_stage_wake_up": "vLLM's servers wake up for weights and KV cache by themselves",
    "data.filter_overlong_prompts_workers": "tasks are filtered in one process",
    "data.validation_shuffle": "validation plays every held-out task, whatever their order",
    f"{_lora('actor_rollout_ref.model')} {_lora('critic.model')} critic.model.lora.merge": LORA,
    "distillation": "marl-verl has no distillation",
    "skip": "marl-verl has no cache of rollouts",
}


FIXED = (  # a key, the only value that it may have (a recipe's default), and what replaces it
    ("data.train_files", None, "a team's tasks are marl.task.train_file, or marl.task.name=verl"),
    ("data.val_files", None, "a team's held-out tasks are marl.task.test_file, or marl.task.name=verl"),
    ("algorithm.adv_estimator", "grpo", "a team's advantage is marl.algorithm.name"),
    ("actor_rollout_ref.rollout.n", 1, ATTEMPTS),
    ("actor_rollout_ref.rollout.name", "vllm", "a team is served by vLLM"),
    (
        "actor_rollout_ref.rollout.pipeline_model_parallel_size",
        1,
        "verl's vLLM servers support tensor parallelism only",
    ),
    ("actor_rollout_ref.rollout.checkpoint_engine.backend", "naive", "a policy's servers are on its training GPUs"),
    ("actor_rollout_ref.rollout.mode", "async", "verl has no other mode"),
    ("actor_rollout_ref.rollout.do_sample", True, "an agent's temperature is in marl.agents.<name>.sampling"),
    ("actor_rollout_ref.rollout.val_kwargs.n", 1, "the number of episodes per task is in marl.validation.options"),
    ("actor_rollout_ref.actor.grad_clip", 1.0, "verl's FSDP engine clips at actor.optim.clip_grad"),
    (
        "actor_rollout_ref.rollout.agent.agent_loop_manager_class",
        "marl_verl.rollout.manager.TeamRolloutManager",
        "it samples a team's episodes",
    ),
    ("data.custom_cls.path", "pkg://marl_verl.tasks.dataset", "a team's tasks are marl.task"),
    ("algorithm.gamma", 1.0, "a team's discount is in marl.algorithm.options"),
    ("algorithm.lam", 1.0, "a team's lambda is in marl.algorithm.options"),
    ("algorithm.norm_adv_by_std_in_grpo", True, "a team's scale is marl.algorithm.options.norm_by_std"),
    ("algorithm.use_kl_in_reward", False, "a team's KL penalty is actor.use_kl_loss"),
    ("trainer.critic_warmup", 0, "a team's critics have none"),
    ("trainer.val_only", False, "a trained run is evaluated by `marl-verl eval`"),
    ("trainer.use_v1", True, "teams are trained by verl's V1 trainer"),
)


def check_unused(config: DictConfig, team: TeamConfig) -> None:
    """MarlError for a key of `UNUSED` in a composed config whose value is not verl's default, or one of `FIXED`."""
    _check_fixed(config, team)
    default, roots = verl_defaults(), {names.split(".")[0] for names in " ".join(UNUSED).split()}
    whole = {root: OmegaConf.to_container(config[root]) for root in roots if isinstance(config.get(root), DictConfig)}
    critic = config.marl.get("critic")
    sections: list[tuple[str, str, dict[str, Any]]] = [("", "", whole)]  # key of verl, ours, content
    sections += [
        ("actor_rollout_ref", f"marl.policies.{name}", {"actor_rollout_ref": policy.override})
        for name, policy in team.policies.items()
    ]
    if isinstance(critic, DictConfig):
        sections.append(("critic", "marl.critic", {"critic": OmegaConf.to_container(critic)}))
    for (names, why), (verl, ours, given) in itertools.product(UNUSED.items(), sections):
        for name in names.split():
            where = ours + name.removeprefix(verl)
            if (found := _difference(at(given, name), at(default, name), where)) is not None:
                raise MarlError(f"'{found[0]}' has no effect on a team, got {shown(found[1])}: {why}")


def _check_fixed(config: DictConfig, team: TeamConfig) -> None:
    for key, value, why in FIXED:
        found = [(key, OmegaConf.select(config, key))]
        if (part := key.removeprefix("actor_rollout_ref.")) != key:
            for name, policy in team.policies.items():
                given = OmegaConf.select(OmegaConf.create(policy.override), part)
                found.append((f"marl.policies.{name}.{part}", value if given is None else given))
        for where, given in found:
            if given != value:
                raise MarlError(f"'{where}' must be {value!r}, got {given!r}: {why}")


def at(section: Any, key: str) -> Any:
    """The value of a dotted key of nested dicts; None where there is none."""
    for name in key.split("."):
        section = section.get(name) if isinstance(section, dict) else None
    return section


def _difference(given: Any, default: Any, where: str) -> tuple[str, Any] | None:
    """(key, value) of the first value that is not the default."""
    if isinstance(given, dict) and isinstance(default, dict):
        pairs = (_difference(value, default.get(key), f"{where}.{key}") for key, value in given.items())
        return next((found for found in pairs if found is not None), None)
    return None if given in (default, None) else (where, given)


@functools.cache
def verl_defaults() -> dict[str, Any]:
    """verl's own config, in which an interpolation is a text."""
    text = (verl_configs() / "_generated_ppo_trainer.yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))
