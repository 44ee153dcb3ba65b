"""Pools at work: verl's resource pools, and whose turn it is on one that several policies share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from marl_verl.trainer.placement import Pool

COLOCATED = 3
"""Processes that one policy puts on a GPU: training worker, server, and what a server starts."""


class Place:
    """A pool that has its GPUs.

    Args:
        pool: which policies, how large.
        serial: start and learn one policy at a time; where memory is shared, two at once would not fit.
    """

    def __init__(self, pool: Pool, serial: bool) -> None:
        self.pool = pool
        self._turn = threading.RLock() if serial else None
        self._made: Any = None
        self._making = threading.Lock()

    def resources(self) -> Any:
        """verl's `RayResourcePool`, whose placement groups are there; made at the first call."""
        from verl.single_controller.ray import RayResourcePool

        with self._making:
            if self._made is None:
                pool = RayResourcePool(
                    process_on_nodes=[self.pool.gpus] * self.pool.nodes,
                    use_gpu=True,
                    max_colocate_count=COLOCATED * len(self.pool.policies),
                    name_prefix=f"pool-{self.pool.name}",
                )
                pool.get_placement_groups(device_name=_device())
                self._made = pool
            return self._made

    @contextmanager
    def turn(self) -> Iterator[None]:
        """While one policy of a shared pool learns or syncs, the others wait; without sharing nobody does."""
        if self._turn is None:
            yield
        else:
            with self._turn:
                yield


def _device() -> str:
    from verl.utils.device import get_device_name

    return str(get_device_name())
