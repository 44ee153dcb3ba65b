"""Settings of Megatron, VeOmni, SGLang and others as settings of FSDP and vLLM, with the sizes that correspond.

For `marl-verl from-verl`. `python -m marl_verl.main_ppo` refuses these engines: a run should not use another one than
its script says, unless a user has seen what becomes of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_ENGINES = "megatron|veomni|mindspeed|torchtitan|automodel"
_PART = rf"(actor_rollout_ref\.(?:actor|ref)|critic)\.(?:{_ENGINES})"
_RECOMPUTE = rf"\.(?:{_ENGINES})\.override_transformer_config\.recompute.*"
RULES = (
    (r"--config-name=.*(?:megatron|veomni|mindspeed).*|--(?!config-name).*", ""),
    (r"model_engine=(?!(?:dp|fsdp)$).*", ""),
    (rf"(.*\.strategy)=['\"]?(?:{_ENGINES})['\"]?", r"\1=fsdp2"),
    (r"(actor_rollout_ref\.rollout\.name)=['\"]?(?:sglang|trtllm)['\"]?", r"\1=vllm"),
    (r"actor_rollout_ref\.rollout\.(?:engine_kwargs\.(?:sglang|trtllm)\b|sglang).*", ""),
    (rf"{_PART}\.(?:param_offload|enable_fsdp_offload)=(.*)", r"\1.fsdp_config.param_offload=\2"),
    (rf"{_PART}\.(optimizer_offload|fsdp_size)=(.*)", r"\1.fsdp_config.\2=\3"),
    (rf"{_PART}\.(?:context_parallel_size|ulysses_parallel_size)=(.*)", r"\1.ulysses_sequence_parallel_size=\2"),
    (rf"{_PART}\.(use_remove_padding=.*)", r"\1.\2"),
    (rf"(actor_rollout_ref)\.actor{_RECOMPUTE}|(critic){_RECOMPUTE}", r"\1\2.model.enable_gradient_checkpointing=True"),
    (rf"{_PART}\..*", ""),
    (r"(.*\.model)\.lora\.(rank=.*|alpha=.*)", r"\1.lora_\2"),
    (r"(.*\.model)\.lora\.(target_modules=.*)", r"\1.\2"),
    (r".*\.model\.lora\.(?!merge\b).*", ""),
)
"""Argument -> argument of FSDP or vLLM, "" where none corresponds; the first rule that matches."""
OF_MEGATRON = (
    r".*\.optim\.(?:override_optimizer_config|lr_decay_style|lr_decay_steps|lr_warmup_init|min_lr|optimizer=|"
    r"use_checkpoint).*",
    "",
)


def to_fsdp_and_vllm(arguments: Iterable[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """(arguments for FSDP and vLLM, (argument of another engine, what became of it: "" if nothing))."""
    arguments = list(arguments)
    rules = (*RULES, OF_MEGATRON) if any("megatron" in word.lower() for word in arguments) else RULES
    words: list[str] = []
    changes: list[tuple[str, str]] = []
    for word in arguments:
        matches = ((re.fullmatch(rule, word.lstrip("+~"), re.DOTALL), new) for rule, new in rules)
        new = next((match.expand(new) for match, new in matches if match), word)
        if new != word:
            changes.append((word, new))
        if new:
            words.append(new)
    return words, changes
