"""Loaded by `import verl` in every process (entry-point group `verl.plugins`): the CPU platform, the policies' servers.

verl logs an error in here at DEBUG level only, so the trainer checks at start that `LOADED` is true where it must be.
"""

from __future__ import annotations

import os

from marl_verl.platforms.active import cpu_run, in_run

LOADED = False


def install_cpu_platform() -> None:
    """Register the platform and apply the workarounds. No-op with an accelerator or outside a marl-verl run."""
    from verl.plugin.platform import PlatformRegistry, set_platform

    from marl_verl.platforms import workarounds
    from marl_verl.platforms.cpu import CPUPlatform

    if PlatformRegistry.get("cpu") is not None:
        return
    PlatformRegistry.register(platform="cpu")(CPUPlatform)
    # verl looked the platform up while it was importing, before it loads plugins
    set_platform(CPUPlatform())
    # verl registers its training engines for cuda and npu only; the FSDP engine is the same class on a CPU
    os.environ.setdefault("VERL_ENGINE_DEVICE", "cuda")
    workarounds.alias_vllm_version()
    workarounds.default_process_group_to_gloo()


if cpu_run():
    install_cpu_platform()
if in_run():
    from marl_verl.rollout.servers import register_policy_servers

    register_policy_servers()
    LOADED = True
