"""The devices of a pool at runtime: verl's resource pool, the policies' locks, server slots, rendezvous ports.

verl places a server on the devices of its training workers, and queries each worker's location with a function that
imports all of verl. A frozen policy has slots instead of workers; they report their location without importing verl.
"""

import random
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any, NamedTuple

from marl_verl.config.placement import Pool

FIRST_PORT, END_PORT, TRIED_PORTS = 20_000, 30_000, 100
"""Below the kernel's ephemeral range (`net.ipv4.ip_local_port_range`, 32768 to 60999 by default)."""


class Devices:
    """The GPUs of a pool (logical slots on a CPU). With `serial` only one policy at a time may use them.

    A policy's training workers and its critic's are the same Ray actors, and most calls run collectives over all ranks.
    Two calls in flight may reach the ranks in different orders, and then wait for each other for ever. Submitting them
    in order is not enough: verl's workers have an async method, and Ray does not order the calls of such actors.
    """

    def __init__(self, pool: Pool, serial: bool) -> None:
        self.pool = pool
        common = threading.RLock()
        self._locks = {name: common if serial else threading.RLock() for name in pool.policies}
        self._made, self._making = None, threading.Lock()

    def lock(self, policy: str) -> AbstractContextManager[Any]:
        """The lock to hold during every call to a policy's training workers, until it has returned."""
        return self._locks[policy]

    def resources(self) -> Any:
        """verl's `RayResourcePool` with its placement groups, created at the first call."""
        from verl.single_controller.ray import RayResourcePool
        from verl.utils.device import get_device_name

        with self._making:
            if self._made is None:
                pool = RayResourcePool(
                    process_on_nodes=[self.pool.gpus] * self.pool.nodes,
                    use_gpu=True,
                    max_colocate_count=self.pool.cpus,
                    name_prefix=f"pool-{self.pool.name}",
                )
                pool.get_placement_groups(device_name=str(get_device_name()))
                self._made = pool
            return self._made

    def slots(self) -> "Slots":
        """Create a slot in every bundle of the pool."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
        from verl.plugin.platform import get_platform

        resource, pool, actor = get_platform().ray_resource_name(), self.resources(), ray.remote(Slot)
        workers = []
        for group in pool.get_placement_groups():
            for bundle in range(group.bundle_count):
                where = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=bundle)
                # no CPUs: a bundle has only enough for its workers
                options = {"num_cpus": 0, "num_gpus": 1 / pool.max_colocate_count, "scheduling_strategy": where}
                workers.append(held(actor.options(**options).remote(), resource))
        return Slots(workers, len(workers))


class Slot:
    """An actor that reserves a share of a GPU (of a logical slot on a CPU) and reports its location."""

    def place(self, resource: str) -> tuple[str, str]:
        """(node id, index of the GPU on its node)."""
        import ray

        context = ray.get_runtime_context()
        return context.get_node_id(), str(context.get_accelerator_ids()[resource][0])


def held(actor: Any, resource: str) -> Any:
    """A slot with the interface that verl calls on a training worker, `worker.__ray_call__.remote(function)`, which
    returns the slot's node and GPU, as verl's function does."""
    return SimpleNamespace(__ray_call__=SimpleNamespace(remote=lambda function: actor.place.remote(resource)))


class Slots(NamedTuple):
    """Replaces verl's worker group for a policy that is not trained."""

    workers: Sequence[Any]
    world_size: int


def rendezvous_ports() -> list[int]:
    """[first, end) of the ports to try, in order, on the node of a policy's first training worker. The port is chosen
    seconds before a worker listens on it; a connection could take an ephemeral port meanwhile. The first port is
    random, whatever the run's seed: concurrent runs and policies choose different ports."""
    first = random.SystemRandom().randrange(FIRST_PORT, END_PORT - TRIED_PORTS)
    return [first, first + TRIED_PORTS]


def numbered(kind: str, of: str, actors: Sequence[Any]) -> dict[str, Any]:
    """Description -> actor, numbered if there are several."""
    if len(actors) == 1:
        return {f"{kind}{of}": actors[0]}
    return {f"{kind} {number}{of}": actor for number, actor in enumerate(actors)}


def ranks(workers: Any, mesh: str) -> int:
    """Number of data-parallel ranks of a worker group."""
    if mesh not in workers._dispatch_info:
        workers._dispatch_info[mesh] = workers._query_dispatch_info(mesh)
    return int(max(workers._dispatch_info[mesh])) + 1
