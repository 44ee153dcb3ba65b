"""The backend of a run (`marl.run.backend`): which one it uses, and what `local`, one process, cannot do."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

from omegaconf import DictConfig, OmegaConf

from marl_verl.config.compose import parse_overrides
from marl_verl.config.hardware import on_gpu, ray_address
from marl_verl.config.placement import WIDTHS, pools_of
from marl_verl.errors import check
from marl_verl.team import TeamConfig

KEY = "marl.run.backend"
RANKS = (*(f"rollout.{name}" for name in (*WIDTHS, "expert_parallel_size")), "actor.ulysses_sequence_parallel_size")
"""Keys that split a model among GPUs."""
VLLM = "rollout.engine_kwargs.vllm"
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
    if address := ray_address(config):
        yield f"'ray_kwargs.ray_init.address' is '{address}', but {where} a run does not use Ray: remove it, {verl}"
    if config.marl.schedule.mode == "async":
        problem = f"marl.schedule.mode=async samples and trains at the same time, but {where} there is one process"
        yield f"{problem}: set marl.schedule.mode=sync, {verl}"
    for pool in pools_of(config, team):
        if pool.size > 1:
            keys = f"gpus and nodes of marl.pools.{pool.name}" if pool.shared else "trainer.n_gpus_per_node and nnodes"
            yield f"policy '{pool.policies[0]}' has {pool.size} GPUs, but {where} it has one: set {keys} to 1, {verl}"
        for name in pool.policies:
            part = copy.deepcopy(config.actor_rollout_ref)
            OmegaConf.set_struct(part, False)
            part = OmegaConf.merge(part, dict(team.policies[name].override))
            yield from _server_problems(part, name, where, verl)  # type: ignore[arg-type]


def _server_problems(part: DictConfig, policy: str, where: str, verl: str) -> Iterator[str]:
    """Problems with the settings of a policy's servers; `part` is its `actor_rollout_ref`."""
    for key in RANKS:
        if (size := OmegaConf.select(part, key)) not in (None, 1):
            yield f"policy '{policy}' has {key}={size}, but {where} a model is on one device: set it to 1, {verl}"
    arguments = OmegaConf.select(part, VLLM) or {}
    changed = [f"{VLLM}.{name}" for name, value in arguments.items() if name not in SAME_SAMPLES and value is not None]
    changed += ["rollout.quantization"] if part.rollout.get("quantization") else []
    if changed:
        problem = f"policy '{policy}' has '{changed[0]}', which changes what vLLM samples"
        yield f"{problem}, but {where} vLLM does not sample: remove it, {verl}"
