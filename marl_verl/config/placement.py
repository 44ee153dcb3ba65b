"""Placement of policies on GPUs (logical slots on a CPU), and a check that there are enough of them.

A policy has a dedicated pool, `trainer.n_gpus_per_node` GPUs on `trainer.nnodes` nodes, or is colocated with others on
a shared pool of `marl.pools`: these sample concurrently and are trained one by one, while the pool's servers sleep.
verl waits without limit for GPUs and CPUs that Ray does not have.
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from marl_verl.config.hardware import cpu_run, on_gpu, rollout_name
from marl_verl.config.schema import Size
from marl_verl.config.stored import BACKEND, is_local
from marl_verl.config.verl_keys import PASS, key_paths, verdict
from marl_verl.errors import MarlError, check, unknown
from marl_verl.extensions import required
from marl_verl.models.count import model_folder, parameters, shapes
from marl_verl.options import build
from marl_verl.team import PolicyConfig, TeamConfig

LARGE = 10_000_000  # parameters of a model from which a CPU updates it alone, and faster in bfloat16
PROCESSES = 3  # at most, of one policy on a GPU: training worker, server, and the server's child process
OWN = (
    *("actor.optim", "actor.policy_loss", "actor.clip_ratio", "actor.tau", "actor.loss", "actor.entropy_coeff"),
    *("actor.calculate_entropy", "actor.use_kl_loss", "actor.kl_loss", "actor.ppo_epochs", "actor.ppo_mini_batch_size"),
    *("actor.shuffle", "actor.data_loader_seed", "rollout.temperature", "rollout.top_", "ref.ppo_mini_batch_size"),
)
"""What keys begin with that may differ between policies on one base model: of optimiser, loss and requests."""


def use_shared_base(actor_rollout_ref: DictConfig, policy: str, sharing: Sequence[str]) -> None:
    """Set the servers' name and number of adapters. MarlError without an adapter, or where it would be merged."""
    where, model, strategy = f"marl.policies.{policy}", actor_rollout_ref.model, actor_rollout_ref.actor.strategy
    for wrong, problem in (
        (not model.lora_rank, f"no adapter: set {where}.model.lora_rank, or remove base"),
        (model.lora.merge, "model.lora.merge=true, and a server of several adapters cannot merge them: leave it out"),
        (strategy != "fsdp2", f"actor.strategy={strategy}: it needs fsdp2"),
    ):
        if wrong:
            raise MarlError(f"policy '{policy}' has {where}.base=shared, but {problem}")
    model.lora.merge = False
    rollout = actor_rollout_ref.rollout
    rollout.name = rollout_name(sharing[0])
    rollout.engine_kwargs = OmegaConf.merge(rollout.engine_kwargs, {"vllm": {"max_loras": len(sharing)}})


@check
def check_shared_base(policies: Mapping[str, Mapping[str, Any]], team: TeamConfig) -> Iterator[str]:
    """MarlError for the first setting in which policies with `base: shared` differ; `policies` are resolved."""
    for other in team.sharing[1:]:
        first = team.sharing[0]
        mine, theirs = (_shared(team.policies[name], policies[name]["actor_rollout_ref"]) for name in (first, other))
        for key in dict.fromkeys([*mine, *theirs]):
            if mine.get(key) != theirs.get(key):
                problem = f"policies '{first}' and '{other}' have base=shared, but their {key} differ"
                values = f"{mine.get(key)} and {theirs.get(key)}"
                yield f"{problem}, {values}: make marl.policies.{other}.{key} equal, or remove base"


def _shared(policy: PolicyConfig, section: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a policy that must be those of the others on its base model."""
    settings = {key: value for key, value in key_paths(section) if not (isinstance(value, Mapping) and value)}
    made = {} if policy.made is None else {policy.made.name: policy.made.options}
    passed = {key: settings[key] for key in settings if verdict(f"actor_rollout_ref.{key}") == PASS}
    shared = {key: value for key, value in passed.items() if not key.startswith(OWN)}
    return {"pool": policy.pool, **made, "model.path": shared.pop("model.path", None), **shared}


def server_gpus(rollout: Any) -> int:
    """The number of GPUs of one server; `rollout` is the config section, or verl's dataclass for it."""
    sizes = ("tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size")
    return math.prod(int(getattr(rollout, size)) for size in sizes)


@dataclass(frozen=True)
class Pool:
    """`gpus` on each of `nodes`, and the policies on them; `shared`: a pool of `marl.pools`, not a dedicated one."""

    name: str
    gpus: int
    nodes: int
    policies: tuple[str, ...]
    shared: bool
    processes: int | None = None  # policies with processes of their own; None: all

    @property
    def size(self) -> int:
        return self.gpus * self.nodes

    @property
    def cpus(self) -> int:
        """Ray CPUs that verl reserves with each GPU: one for each process."""
        return PROCESSES * (len(self.policies) if self.processes is None else self.processes)

    def __str__(self) -> str:
        many = f" x {self.nodes} nodes" if self.nodes > 1 else ""
        return f"{self.gpus}{many} ({', '.join(self.policies)})"


def pools_of(config: DictConfig, team: TeamConfig) -> list[Pool]:
    """The pools of a team, in the order of its policies; external ones have none. MarlError for an invalid pool."""
    pools = config.marl.get("pools")  # absent with the override ~marl.pools
    named: Any = OmegaConf.to_container(pools, resolve=True) if pools else {}
    sizes = {str(name): build(Size, values, f"marl.pools.{name}") for name, values in named.items()}
    dedicated = Size(int(config.trainer.n_gpus_per_node), int(config.trainer.nnodes))
    for policy in team.policies.values():
        if policy.pool is not None and policy.pool not in sizes:
            raise MarlError(f"policy '{policy.name}': {unknown('pool', policy.pool, sizes)} (marl.pools)")
    members: dict[tuple[str, bool], list[str]] = {}
    for policy in team.policies.values():
        if not policy.external:
            key = policy.pool or team.alike(policy.name)[0], policy.pool is not None
            members.setdefault(key, []).append(policy.name)
    made = []
    for (name, shared), policies in members.items():
        size, groups = sizes[name] if shared else dedicated, len({team.alike(policy) for policy in policies})
        processes = groups if groups < len(policies) else None
        made.append(Pool(name, size.gpus, size.nodes, tuple(policies), shared, processes))
    return made


@check
def check_placement(config: DictConfig, team: TeamConfig) -> Iterator[str]:
    """MarlError unless every policy fits its pool and, where the run starts Ray itself, the pools fit this machine;
    with the backend `local`, unless one process can do all."""
    pools = pools_of(config, team)
    if is_local(config):
        required("backend", "local", f"{BACKEND}=local is not installed", "local").check_settings(config, pools)
        return
    for pool in pools:
        overrides = {name: team.policies[name].override.get("rollout", {}) for name in pool.policies}
        rollouts = {name: OmegaConf.merge(config.actor_rollout_ref.rollout, own) for name, own in overrides.items()}
        for name, rollout in rollouts.items():
            if pool.size % (gpus := server_gpus(rollout)):
                yield f"policy '{name}' has {pool.size} GPUs, no multiple of the {gpus} that one of its servers needs"
        if pool.shared and on_gpu(config):
            alone = {name: rollout for name, rollout in rollouts.items() if team.alike(name)[0] == name}
            yield from _memory_problems(pool, alone)
    ray = config.ray_kwargs.ray_init
    if ray.get("address") not in (None, "local"):
        return
    if ray.get("num_gpus") is not None:
        check_room(pools, [int(ray.num_gpus)], "ray_kwargs.ray_init.num_gpus allows")
    elif str(config.trainer.device) == "cuda":  # those of an NPU are not counted here: Ray counts them
        check_room(pools, [_visible_gpus()], "this machine has")
    elif any(pool.nodes > 1 for pool in pools):
        check_room(pools, [sum(pool.gpus for pool in pools)], "one machine has")
    if ray.get("num_cpus") is not None and (needed := ray_cpus(config, pools)) > ray.num_cpus:
        problem = f"'ray_kwargs.ray_init.num_cpus' is {ray.num_cpus}, but the run needs {needed} (logical) CPUs of Ray"
        yield f"{problem}: leave it out, or raise it"


def _memory_problems(pool: Pool, rollouts: Mapping[str, Any]) -> Iterator[str]:
    """Whether the servers of a shared pool fit in memory while all are awake, and can sleep during training."""
    shares = {name: float(rollout.gpu_memory_utilization) for name, rollout in rollouts.items()}
    if sum(shares.values()) >= 1:
        terms = " + ".join(f"{share:g} ({name})" for name, share in shares.items())
        fact = f"the servers on pool '{pool.name}' would take {terms} = {sum(shares.values()):.2f} of each GPU's memory"
        yield f"{fact}: set marl.policies.<name>.rollout.gpu_memory_utilization so that they add up to less than 1"
    for name, rollout in rollouts.items():
        if not rollout.free_cache_engine or not rollout.get("enable_sleep_mode", True):
            problem = f"policy '{name}' shares pool '{pool.name}', where servers must sleep during training"
            yield f"{problem}: leave its rollout.free_cache_engine and rollout.enable_sleep_mode on"


def uses_all_cores(path: str) -> bool:
    """Whether a process of a CPU run updates a model with all cores, after the others. Small models share the cores.

    The time is about the same, but only one model at a time needs memory for gradients, activations and logits.
    """
    return cpu_run() and parameters(shapes(model_folder(path))) >= LARGE


def ray_cpus(config: DictConfig, pools: Sequence[Pool]) -> int:
    """CPUs of Ray for training workers, servers, rollout workers, TransferQueue, and one for verl's short tasks."""
    workers = int(config.actor_rollout_ref.rollout.agent.num_workers)
    units = int(config.transfer_queue.backend.SimpleStorage.num_data_storage_units)
    return sum(pool.size * (pool.cpus + len(pool.policies)) for pool in pools) + workers + units + 2


@check
def check_cpus(config: DictConfig, pools: Sequence[Pool], nodes: Sequence[float]) -> Iterator[str]:
    """MarlError if Ray has too few CPUs on its `nodes`."""
    needed, advice = ray_cpus(config, pools), "start Ray with a larger number (ray start --num-cpus); they are logical"
    if needed > sum(nodes):
        yield f"the run needs {needed} CPUs of Ray, which has {sum(nodes):g}: {advice}"
    for pool in pools:
        if len([count for count in nodes if count >= pool.gpus * pool.cpus]) < pool.nodes:
            fact = f"pool '{pool.name}' reserves {pool.gpus * pool.cpus} CPUs of Ray on each of {pool.nodes} machines"
            yield f"{fact}, but they have {' + '.join(f'{count:g}' for count in nodes)}: {advice}"


def _visible_gpus() -> int:
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return len([name for name in chosen.split(",") if name.strip() not in ("", "-1")])
    return len([path for path in Path("/dev").glob("nvidia[0-9]*") if path.name.removeprefix("nvidia").isdigit()])


def check_room(pools: Sequence[Pool], nodes: Sequence[float], there: str) -> None:
    """MarlError unless the pools fit on `nodes` (GPUs of each); `there` names their owner, e.g. "Ray has"."""
    free = sorted(nodes)
    for pool in sorted(pools, key=lambda pool: -pool.gpus):
        # best fit: the machines with the fewest sufficient free GPUs, a different one for each node
        fitting = [i for i, left in enumerate(free) if left >= pool.gpus][: pool.nodes]
        if len(fitting) < pool.nodes:
            sizes = " + ".join(f"{count:g}" for count in nodes) or 0
            needed = f"{' + '.join(map(str, pools))} = {sum(pool.size for pool in pools)} GPUs, but {there} {sizes}"
            advice = "let agents share a policy (marl.agents.<name>.policy), colocate policies (marl.pools)"
            where = f" (no room for pool '{pool.name}')" if len(nodes) > 1 else ""
            raise MarlError(f"the policies need {needed}{where}: {advice}, or lower trainer.n_gpus_per_node")
        for i in fitting:
            free[i] -= pool.gpus
        free.sort()
