"""vLLM plugin, loaded in each vLLM process (entry-point group `vllm.general_plugins`)."""

from marl_verl.backend.verl.platforms import workarounds
from marl_verl.config.hardware import cpu_run, in_run


def install() -> None:
    """In a marl-verl run: listen on loopback only, and on a CPU keep weights accessible to syncs, and seeds."""
    if in_run():
        workarounds.keep_store_local()
    if cpu_run():
        workarounds.alias_vllm_version()
        workarounds.keep_linear_weights()
        workarounds.keep_seeds()
