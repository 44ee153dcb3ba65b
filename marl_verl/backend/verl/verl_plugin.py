"""verl plugin, loaded by `import verl` (entry-point group `verl.plugins`): CPU platform and policy servers.

verl logs errors in plugins at DEBUG level only.
"""

import json
import os
from importlib import import_module

from marl_verl.backend.verl.platforms import vllm_plugin
from marl_verl.config.hardware import POLICIES_VARIABLE, cpu_run, in_run, rollout_name

HERE = "marl_verl.backend.verl"


def install_cpu_platform() -> None:
    """Register the platform and apply the workarounds. A no-op if they are installed already."""
    from verl.plugin.platform import PlatformRegistry, set_platform

    from marl_verl.backend.verl.platforms.cpu import CPUPlatform

    if PlatformRegistry.get("cpu") is not None:
        return
    PlatformRegistry.register(platform="cpu")(CPUPlatform)
    # verl looks up the platform during its import, before it loads plugins
    set_platform(CPUPlatform())
    # verl registers its training engines for cuda and npu only; the FSDP engine is the same class on a CPU
    os.environ.setdefault("VERL_ENGINE_DEVICE", "cuda")
    vllm_plugin.alias_vllm_version()
    vllm_plugin.default_process_group_to_gloo()


def register_policy_servers() -> None:
    """Register a rollout name with verl for each policy of this run, because each has a separate server group."""
    from verl.workers.rollout.base import _ROLLOUT_REGISTRY
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    for policy in json.loads(os.environ.get(POLICIES_VARIABLE, "[]")):
        name = rollout_name(policy)
        RolloutReplicaRegistry.register(name, lambda: import_module(f"{HERE}.vllm_servers").PolicyReplica)
        _ROLLOUT_REGISTRY[(name, "async")] = f"{HERE}.server_adapter.PolicyServerAdapter"


if cpu_run():
    install_cpu_platform()
if in_run():
    vllm_plugin.keep_store_local()
    register_policy_servers()
