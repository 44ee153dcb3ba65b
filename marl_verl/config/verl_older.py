"""Settings of a verl script, also of verl 0.6 to 0.8, that a team has elsewhere or under another name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marl_verl.config.translation import Translation
from marl_verl.config.verl_keys import KL, REWARD

ACTOR, ROLLOUT, REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
BUFFER = "reward.reward_kwargs.overlong_buffer_cfg"
MOVED: Mapping[str, str] = {
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
"""Older or other places of keys and sections -> where they are in a team's config."""
MICRO = {  # global sizes of verl 0.6 and before
    f"{ACTOR}.ppo_micro_batch_size": f"{ACTOR}.ppo_micro_batch_size_per_gpu",
    f"{ROLLOUT}.log_prob_micro_batch_size": f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu",
    f"{REF}.log_prob_micro_batch_size": f"{REF}.log_prob_micro_batch_size_per_gpu",
    "critic.ppo_micro_batch_size": "critic.ppo_micro_batch_size_per_gpu",
    "critic.forward_micro_batch_size": "critic.forward_micro_batch_size_per_gpu",
}
ROUNDS = 16
"""Rounds of further tasks, at most, also where verl has no limit (`max_num_gen_batches` 0)."""


def translate_settings(script: Translation) -> None:
    """Translate the settings of this module in a script."""
    for key in [*script.values]:
        for old, new in MOVED.items():
            if key == old or key.startswith(f"{old}."):
                script.become(key, new + key.removeprefix(old), script.values[key])
                break
    for key, new in MICRO.items():
        if script.values.get(key) is not None:
            script.become(key, new, max(1, int(script.number(key)) // _gpus(script)))
    _overlong(script)
    _filter(script)
    _kl_in_reward(script)
    _prompts(script)
    _correction(script)
    for part in (f"{ACTOR}.checkpoint.save_contents", "critic.checkpoint.save_contents"):
        if "model" not in (script.values.get(part) or ["model"]):
            script.drop(part)  # resuming and export need all parts
    if script.get(f"{ACTOR}.policy_loss.loss_mode") != "vanilla":
        script.put("marl.algorithm.options.loss", "verl")


def _gpus(script: Translation) -> int:
    return int(script.number("trainer.n_gpus_per_node", 1) * script.number("trainer.nnodes", 1))


def _overlong(script: Translation) -> None:
    """DAPO's penalty for long responses, which verl adds to the score as `overlong` does."""
    names = ("enable", "len", "penalty_factor", "log")
    buffer: dict[str, Any] = {name: script.values.get(f"{BUFFER}.{name}") for name in names}
    longest = "reward.reward_kwargs.max_resp_len"
    longest = "data.max_response_length" if script.values.get(longest) is None else longest
    if not buffer["enable"]:
        for key in [key for key in script.values if key.startswith((f"{BUFFER}.", "reward.reward_kwargs.max_resp"))]:
            script.drop(key)
    elif buffer["len"] is None:
        script.refuse(f"{BUFFER}.enable", REWARD)
    else:
        overlong: dict[str, float] = {"L": int(script.number(longest)), "C": int(script.number(f"{BUFFER}.len"))}
        if buffer["penalty_factor"] not in (None, 1):
            overlong["factor"] = script.number(f"{BUFFER}.penalty_factor")
        script.become(f"{BUFFER}.enable", "marl.algorithm.options.overlong", overlong)
        for name in ("len", "penalty_factor"):
            if f"{BUFFER}.{name}" in script.values:
                script.take(f"{BUFFER}.{name}")
        if "reward.reward_kwargs.max_resp_len" in script.values:
            script.take("reward.reward_kwargs.max_resp_len")


def _filter(script: Translation) -> None:
    """`filter_groups` of DAPO: groups without a difference are replaced by further tasks."""
    section = "algorithm.filter_groups"
    if script.values.get(f"{section}.enable"):
        most = int(script.number(f"{section}.max_num_gen_batches", 0))
        refill = min(most - 1, ROUNDS) if most > 0 else ROUNDS
        script.become(f"{section}.enable", "marl.sampler.filter", {"no_variance": True, "refill": refill})
        for name in ("max_num_gen_batches", "metric", "max_inflight_gen_batches"):
            if f"{section}.{name}" in script.values:
                script.take(f"{section}.{name}")


def _kl_in_reward(script: Translation) -> None:
    """A fixed KL penalty moves from the reward to the loss, with k2, whose gradient is that of the log-ratio."""
    key, kind = "algorithm.use_kl_in_reward", script.get("algorithm.kl_ctrl.type")
    if not script.values.get(key):
        return
    if script.values.get(f"{ACTOR}.use_kl_loss") or kind != "fixed":
        return script.refuse(key, KL)
    coefficient = script.get("algorithm.kl_ctrl.kl_coef")
    for name in ("use_kl_loss", "kl_loss_coef", "kl_loss_type"):
        if f"{ACTOR}.{name}" in script.values:
            script.drop(f"{ACTOR}.{name}")
    if "algorithm.kl_ctrl.kl_coef" in script.values:
        script.become("algorithm.kl_ctrl.kl_coef", f"{ACTOR}.kl_loss_coef", coefficient)
    else:
        script.add(f"{ACTOR}.kl_loss_coef", coefficient)
    script.become(key, f"{ACTOR}.use_kl_loss", True)
    script.add(f"{ACTOR}.kl_loss_type", "k2")
    script.translated.append(("the KL penalty moves from the reward to the loss", f"{ACTOR}.kl_loss_type=k2"))
    for name in ("kl_penalty", "kl_ctrl.type", "kl_ctrl.horizon", "kl_ctrl.target_kl"):
        if f"algorithm.{name}" in script.values:
            script.drop(f"algorithm.{name}")


def _correction(script: Translation) -> None:
    """In bypass mode verl's V1 trainer reads nothing but the mode: PPO's loss, over the rollout's log-probs."""
    section = "algorithm.rollout_correction."
    if script.values.get(f"{section}bypass_mode"):
        for key in [key for key in script.values if key.startswith(section) and key != f"{section}bypass_mode"]:
            script.drop(key)


def _prompts(script: Translation) -> None:
    """Prompts are filtered, never cut: a script that cuts them drops such tasks instead."""
    truncation, filtered = "data.truncation", "data.filter_overlong_prompts"
    if truncation not in script.values:
        return
    if script.values.get(filtered) or script.values[truncation] == "error":
        return script.drop(truncation)
    if filtered in script.values:
        script.drop(filtered)
    script.become(truncation, filtered, True)
