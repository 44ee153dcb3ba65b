"""Settings of Megatron, VeOmni, SGLang and others as settings of FSDP and vLLM, with the sizes that correspond.

For `marl-verl from-verl`. `python -m marl_verl.main_ppo` refuses these engines: a run should not use another one than
its script says, unless a user has seen what becomes of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

ENGINES = ("megatron", "veomni", "mindspeed", "torchtitan", "automodel")
SERVERS = ("sglang", "trtllm")
_ENGINE = rf"(?P<role>actor_rollout_ref\.(?:actor|ref)|critic)\.(?:{'|'.join(ENGINES)})\.(?P<name>[\w.]+)"
CONVERTED = {
    "param_offload": "fsdp_config.param_offload",
    "optimizer_offload": "fsdp_config.optimizer_offload",
    "enable_fsdp_offload": "fsdp_config.param_offload",
    "fsdp_size": "fsdp_config.fsdp_size",
    "context_parallel_size": "ulysses_sequence_parallel_size",
    "ulysses_parallel_size": "ulysses_sequence_parallel_size",
    "use_remove_padding": "use_remove_padding",
}
"""A key of an engine's section -> the key of FSDP, beside it."""
MEGATRON_OPTIMISER = re.compile(
    r"\.optim\.(override_optimizer_config|lr_decay_style|lr_decay_steps|lr_warmup_init|min_lr|optimizer$|use_checkpoint)"
)
LORA = {"rank": "lora_rank", "alpha": "lora_alpha", "target_modules": "target_modules"}


def to_fsdp_and_vllm(arguments: Iterable[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """(arguments for FSDP and vLLM, (argument of another engine, what became of it: "" if nothing))."""
    arguments = list(arguments)
    megatron = any("megatron" in word.lower() for word in arguments)
    words: list[str] = []
    changes: list[tuple[str, str]] = []
    for word in arguments:
        new = _converted(word, megatron)
        if new == word:
            words.append(word)
            continue
        changes.append((word, new))
        if new:
            words.append(new)
    return words, changes


def _converted(word: str, megatron: bool) -> str:
    """An argument as one of FSDP or vLLM, "" where none corresponds."""
    key, _, value = word.partition("=")
    name = key.lstrip("+~")
    if name.startswith("--"):
        return "" if re.search("megatron|veomni|mindspeed", value) or name != "--config-name" else word
    if name == "model_engine" and value not in ("dp", "fsdp"):
        return ""
    if name.endswith(".strategy") and value.strip("'\"") in ENGINES:
        return f"{name}=fsdp2"
    if name == "actor_rollout_ref.rollout.name" and value.strip("'\"") in SERVERS:
        return f"{name}=vllm"
    if re.match(rf"actor_rollout_ref\.rollout\.(engine_kwargs\.({'|'.join(SERVERS)})\b|sglang)", name):
        return ""
    if (inside := re.fullmatch(_ENGINE, name)) is not None:
        role, setting = inside["role"], inside["name"]
        if setting.startswith("override_transformer_config.recompute") and role != "actor_rollout_ref.ref":
            return f"{_model(role)}.enable_gradient_checkpointing=True"
        return f"{role}.{CONVERTED[setting]}={value}" if setting in CONVERTED else ""
    if megatron and MEGATRON_OPTIMISER.search(name):
        return ""
    if (adapter := re.fullmatch(r"(.*\.model)\.lora\.(\w+)", name)) is not None and adapter[2] != "merge":
        return f"{adapter[1]}.{LORA[adapter[2]]}={value}" if adapter[2] in LORA else ""
    return word


def _model(role: str) -> str:
    return "critic.model" if role == "critic" else "actor_rollout_ref.model"
