"""vLLM plugin, loaded in each vLLM process (entry-point group `vllm.general_plugins`)."""

from __future__ import annotations

from marl_verl.platforms import workarounds
from marl_verl.platforms.active import cpu_run


def install() -> None:
    """Keep vLLM's weights accessible to weight syncs. A no-op with an accelerator or outside a marl-verl run."""
    if cpu_run():
        workarounds.alias_vllm_version()
        workarounds.keep_linear_weights()
