"""Keys of verl that have no effect on a team: they may only have verl's default, and each says what replaces it."""

from __future__ import annotations

import functools
from typing import Any

from omegaconf import DictConfig, OmegaConf

from marl_verl.config.recipe_file import verl_configs
from marl_verl.errors import MarlError, shown

JUDGE = "a judge is an agent of the team, with a frozen policy or an endpoint (docs/teams.md)"
SCORE = "a function that scores answers is marl.task.reward"
TASKS, CHAT, TEXT = "a team's tasks are marl.task", "agents are always shown chat messages", "agents see text only"
TOOLS = "tools are functions that the workflow calls (team.call)"
KL = "a team's KL penalty is actor_rollout_ref.actor.use_kl_loss=true with kl_loss_coef"
RESUME = "a run is continued by marl-verl train --resume RUN"
KEPT = "a checkpoint is that of the whole team: set marl.checkpoint.keep"
REPLAY = "`marl-verl replay RUN` shows a run's episodes"
FILES = {  # verl's config file -> its place in the config
    "ppo_trainer.yaml": "",
    "legacy_reward_impl.yaml": "",
    "data/legacy_data.yaml": "data",
    "reward/reward.yaml": "reward",
    "distillation/distillation.yaml": "distillation",
}
UNUSED = {  # keys or sections, separated by spaces -> what to use instead
    "reward.reward_manager reward_model.reward_manager": SCORE,
    "reward.reward_model reward_model": JUDGE,
    "sandbox_fusion": "set reward.sandbox_fusion",
    "data.gen_batch_size": "a step samples data.train_batch_size tasks",
    "data.tool_config_path data.function_tool_path": TOOLS,
    "data.return_raw_input_ids data.return_raw_chat data.return_full_prompt": CHAT,
    "data.image_key data.video_key data.audio_key data.image_patch_size data.return_multi_modal_inputs": TEXT,
    "data.mm_processor_kwargs": TEXT,
    "data.truncation": "an observation that is too long fails its episode",
    "data.tokenizer": "set actor_rollout_ref.model.tokenizer_path",
    "data.trust_remote_code": "set actor_rollout_ref.model.trust_remote_code",
    "data.use_shm": TASKS,
    "algorithm.filter_groups": "groups without a difference have advantage 0 and stay in the batch",
    "algorithm.kl_ctrl algorithm.kl_penalty": KL,
    "algorithm.use_pf_ppo algorithm.pf_ppo": "marl-verl has no reweighting of samples",
    "trainer.rollout_data_dir": "episodes are in journals/ of the run directory (marl.run.keep_journals)",
    "trainer.validation_data_dir": "episodes are in episodes/ of the run directory (marl.rollout.keep_episodes)",
    "trainer.log_val_generations": REPLAY,
    "trainer.resume_from_path": RESUME,
    "trainer.default_local_dir trainer.default_hdfs_dir": "a run is written to marl.run.dir",
    "trainer.max_actor_ckpt_to_keep trainer.max_critic_ckpt_to_keep trainer.del_local_ckpt_after_load": KEPT,
    "trainer.esi_redundant_time": "set trainer.save_freq",
    "trainer.checkpoint_callback_class": "a plugin's marl_step_finished is called after each step (docs/plugins.md)",
    "trainer.ray_wait_register_center_timeout": "marl-verl waits for its processes itself",
    "distillation.enabled": "marl-verl has no distillation",
    "skip": "marl-verl has no cache of rollouts",
}


def check_unused(config: DictConfig) -> None:
    """MarlError for a key of `UNUSED` in a composed config whose value is not verl's default."""
    default = verl_defaults()
    roots = {names.split(".")[0] for names in " ".join(UNUSED).split()}
    given = {root: OmegaConf.to_container(config[root]) for root in roots if isinstance(config.get(root), DictConfig)}
    for names, why in UNUSED.items():
        for name in names.split():
            if (found := _difference(_at(given, name), _at(default, name), name)) is not None:
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
    """The values of verl's config files in `FILES`, by section."""
    found: dict[str, Any] = {}
    for file, place in FILES.items():
        read: Any = OmegaConf.to_container(OmegaConf.load(verl_configs() / file))
        for key, value in ({place: read} if place else read).items():
            found.setdefault(key, value)
    return found
