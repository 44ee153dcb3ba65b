"""The backend of a run (`marl.run.backend`): which one it uses, and what `local`, one process, cannot do."""

from collections.abc import Iterator, Sequence

from omegaconf import DictConfig

from marl_verl.config.compose import parse_overrides
from marl_verl.config.hardware import on_gpu, ray_address
from marl_verl.config.placement import pools_of
from marl_verl.errors import check
from marl_verl.team import TeamConfig

KEY = "marl.run.backend"


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
