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
REPLAY = "`marl-verl replay RUN` shows a run's episodes"
TIMES = "workers are not profiled: seconds/* in metrics.jsonl are the times of a step"
SCHEDULE = "set marl.schedule"
LENGTH = "an observation that is too long fails its episode; data.filter_overlong_prompts=true drops such tasks"
STEPS = "set trainer.total_training_steps"
METRICS = "no server of metrics is started (docs/security.md)"
QAT = "marl-verl has no training with quantisation"
FSDP = "policies are trained by verl's FSDP engine"
TEXT_ROWS = "agents see text only, and every row is computed for itself"
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
    "actor_rollout_ref.actor.freeze_vision_tower actor_rollout_ref.actor.use_prefix_grouper": TEXT_ROWS,
    "actor_rollout_ref.rollout.prometheus transfer_queue.metrics": METRICS,
    "transfer_queue.backend.storage_backend transfer_queue.backend.MooncakeStore": "rows are kept in SimpleStorage",
    "actor_rollout_ref.rollout.disaggregation": "verl supports it with SGLang only",
    "actor_rollout_ref.rollout.multi_turn": "a team's turns are those of its workflow (marl.workflow)",
    "actor_rollout_ref.rollout.agent.default_agent_loop": "what an agent does is marl.workflow",
    "critic.forward_micro_batch_size": "set critic.forward_micro_batch_size_per_gpu",
    "actor_rollout_ref.actor.optim.total_training_steps critic.optim.total_training_steps": STEPS,
    "distillation": "marl-verl has no distillation",
    "skip": "marl-verl has no cache of rollouts",
}


def check_unused(config: DictConfig, team: TeamConfig) -> None:
    """MarlError for a key of `UNUSED` in a composed config whose value is not verl's default."""
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
            if (found := _difference(_at(given, name), _at(default, name), where)) is not None:
                raise MarlError(f"'{found[0]}' has no effect on a team, got {shown(found[1])}: {why}")


def _at(section: Any, key: str) -> Any:
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
