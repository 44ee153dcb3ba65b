"""The backend of a run (`marl.run.backend`): which one it uses, and what `local`, one process, cannot do."""

from collections.abc import Iterator, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from marl_verl.config.compose import parse_overrides
from marl_verl.config.hardware import on_gpu, ray_address
from marl_verl.config.placement import pools_of
from marl_verl.errors import check
from marl_verl.team import TeamConfig

KEY = "marl.run.backend"
SAME_SAMPLES = (
    *("async_scheduling", "block_size", "compilation_config", "cpu_offload_gb", "disable_log_stats"),
    *("distributed_executor_backend", "enable_log_requests", "enable_prefix_caching", "enforce_eager"),
    *("kv_cache_memory_bytes", "long_prefill_token_threshold", "max_cpu_loras", "max_loras"),
    *("max_long_partial_prefills", "max_num_partial_prefills", "max_parallel_loading_workers", "swap_space"),
)
"""Arguments of vLLM that change its memory, speed and logs, not what is sampled."""


def is_local(config: DictConfig) -> bool:
    """Whether a run works in this process."""
    return bool(config.marl.run.get("backend") == "local")  # a run of an older version has no such key


def choose_backend(config: DictConfig, overrides: Sequence[str]) -> str:
    """The backend of a new run: that of an override, else `verl` on GPUs and with a Ray address, else the recipe's."""
    backend = config.marl.run.backend
    chosen = any(change.key_or_group == KEY for change in parse_overrides(overrides))
    if backend is None or (not chosen and (on_gpu(config) or ray_address(config))):
        return "verl"
    return str(backend)


@check
def check_local(config: DictConfig, team: TeamConfig) -> Iterator[str]:
    """MarlError for settings that one process cannot follow, if the run's backend is `local`."""
    if not is_local(config):
        return
    where, verl = f"with {KEY}=local", f"or set {KEY}=verl"
    if config.marl.schedule.mode == "async":
        problem = f"marl.schedule.mode=async samples and trains at the same time, but {where} there is one process"
        yield f"{problem}: set marl.schedule.mode=sync, {verl}"
    for pool in pools_of(config, team):
        if pool.size > 1:
            keys = f"gpus and nodes of marl.pools.{pool.name}" if pool.shared else "trainer.n_gpus_per_node and nnodes"
            yield f"policy '{pool.policies[0]}' has {pool.size} GPUs, but {where} it has one: set {keys} to 1, {verl}"
        for name in pool.policies:
            own = OmegaConf.create(team.policies[name].override.get("rollout") or {})
            rollout: Any = OmegaConf.merge(config.actor_rollout_ref.rollout, own)
            arguments = OmegaConf.select(rollout, "engine_kwargs.vllm") or {}
            changed = [key for key, value in arguments.items() if key not in SAME_SAMPLES and value is not None]
            changed += ["quantization"] if rollout.get("quantization") else []
            if changed:
                problem = f"policy '{name}' has '{changed[0]}' of rollout, which changes what vLLM samples"
                yield f"{problem}, but {where} vLLM does not sample: remove it, {verl}"
