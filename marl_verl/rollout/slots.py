"""Places for the servers of a policy that does not learn: where a training worker would stand, a process that holds it.

verl starts a server beside its training workers and asks each where it runs, by sending it a function that imports all
of verl. A slot answers without: nothing of verl is loaded for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


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
        """The slot's place, which is what verl's function is for."""
        return self.actor.place.remote(self.resource)


@dataclass(frozen=True)
class Slots:
    """What stands in for the worker group of a policy that learns."""

    workers: Sequence[Held]

    @property
    def world_size(self) -> int:
        """Number of slots."""
        return len(self.workers)


def hold(pool: Any, resource: str) -> Slots:
    """A slot in every bundle of a pool.

    Args:
        pool: verl's `RayResourcePool`.
        resource: what Ray calls an accelerator.
    """
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    actor = ray.remote(Slot)
    held = []
    for group in pool.get_placement_groups():
        for bundle in range(group.bundle_count):
            where = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=bundle)
            # CPU: a bundle has as many as workers may be on it
            made = actor.options(num_cpus=0, num_gpus=1 / pool.max_colocate_count, scheduling_strategy=where).remote()
            held.append(Held(made, resource))
    return Slots(held)
