"""Loaded by vLLM in each of its processes (entry-point group `vllm.general_plugins`)."""

from __future__ import annotations

from marl_verl.platforms import workarounds
from marl_verl.platforms.active import cpu_run


def install() -> None:
    """Keep vLLM's weights where a weight sync finds them. No-op with an accelerator or outside a marl-verl run."""
    if cpu_run():
        workarounds.alias_vllm_version()
        workarounds.keep_linear_weights()
