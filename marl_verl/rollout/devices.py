"""The devices of a pool at work: verl's resource pool, the lock of a shared one, slots for servers, rendezvous ports.

verl starts a server beside its training workers and asks each where it runs, by sending it a function that imports all
of verl. A policy that does not learn has slots instead: they answer, and load nothing of verl.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from marl_verl.config.placement import Pool

COLOCATED = 3
"""Processes that one policy puts on a GPU: training worker, server, and what a server starts."""
FIRST_PORT, END_PORT, TRIED_PORTS = 20_000, 30_000, 100
"""Below the kernel's ephemeral range (`net.ipv4.ip_local_port_range`, 32768 to 60999 by default)."""


class Devices:
    """The GPUs of a pool (logical slots on a CPU), which with `serial` have no memory for two policies at once."""

    def __init__(self, pool: Pool, serial: bool) -> None:
        self.pool = pool
        self._lock = threading.RLock() if serial else None
        self._made, self._making = None, threading.Lock()

    def acquire(self) -> AbstractContextManager[Any]:
        """Hold the devices of a shared pool while a policy starts, learns or syncs; without sharing nothing waits."""
        return self._lock or nullcontext()

    def resources(self) -> Any:
        """verl's `RayResourcePool`, whose placement groups exist; made at the first call."""
        from verl.single_controller.ray import RayResourcePool
        from verl.utils.device import get_device_name

        with self._making:
            if self._made is None:
                pool = RayResourcePool(
                    process_on_nodes=[self.pool.gpus] * self.pool.nodes,
                    use_gpu=True,
                    max_colocate_count=COLOCATED * len(self.pool.policies),
                    name_prefix=f"pool-{self.pool.name}",
                )
                pool.get_placement_groups(device_name=str(get_device_name()))
                self._made = pool
            return self._made

    def slots(self) -> Slots:
        """A new slot in every bundle of the pool."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
        from verl.plugin.platform import get_platform

        resource, pool, actor = get_platform().ray_resource_name(), self.resources(), ray.remote(Slot)
        held = []
        for group in pool.get_placement_groups():
            for bundle in range(group.bundle_count):
                where = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=bundle)
                # CPU: a bundle has as many as workers may be on it
                options = {"num_cpus": 0, "num_gpus": 1 / pool.max_colocate_count, "scheduling_strategy": where}
                held.append(Held(actor.options(**options).remote(), resource))
        return Slots(held)


class Slot:
    """An actor that holds a share of a GPU (of a logical slot on a CPU) and does nothing with it."""

    def place(self, resource: str) -> tuple[str, str]:
        """(node id, number of the GPU on its node)."""
        import ray

        context = ray.get_runtime_context()
        return context.get_node_id(), str(context.get_accelerator_ids()[resource][0])


@dataclass(frozen=True)
class Held:
    """A slot in the form in which verl talks to a training worker: `worker.__ray_call__.remote(function)`."""

    actor: Any
    resource: str

    @property
    def __ray_call__(self) -> Held:
        return self

    def remote(self, function: Any) -> Any:
        """The slot's node and GPU, which is what verl's function returns."""
        return self.actor.place.remote(self.resource)


@dataclass(frozen=True)
class Slots:
    """Replaces the worker group of a policy that learns."""

    workers: Sequence[Held]

    @property
    def world_size(self) -> int:
        return len(self.workers)


def rendezvous_ports() -> list[int]:
    """[first, end) of the ports to try, in order, on the node of a policy's first training worker.

    The port is chosen seconds before a worker listens on it: an ephemeral one could be given to a connection meanwhile.
    The first is random, whatever the run's seed, so that runs and policies that start together choose different ones.
    """
    first = random.SystemRandom().randrange(FIRST_PORT, END_PORT - TRIED_PORTS)
    return [first, first + TRIED_PORTS]


def numbered(what: str, of: str, actors: Sequence[Any]) -> dict[str, Any]:
    """What it is -> the actor, with a number where there are several."""
    if len(actors) == 1:
        return {f"{what}{of}": actors[0]}
    return {f"{what} {number}{of}": actor for number, actor in enumerate(actors)}
