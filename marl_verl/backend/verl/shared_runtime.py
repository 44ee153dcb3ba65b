"""The runtimes of policies with `base: shared`: the first one starts the processes, which serve and train them all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from omegaconf import DictConfig
from verl.single_controller.ray import RayClassWithInitArgs

from marl_verl.backend.learning.adapters import SharedBaseWorker
from marl_verl.backend.protocol import RowStore
from marl_verl.backend.verl.critic import RayCritic
from marl_verl.backend.verl.devices import Devices
from marl_verl.backend.verl.policy_runtime import PolicyRuntime
from marl_verl.team import PolicyConfig


class SharedRuntime(PolicyRuntime):
    """A trained policy with an adapter on a base model that it shares with the others of `group`, in their order."""

    def __init__(
        self,
        policy: PolicyConfig,
        config: DictConfig,
        devices: Devices,
        store: RowStore,
        critics: Sequence[RayCritic],
        group: list[SharedRuntime],
    ) -> None:
        super().__init__(policy, config, devices, store, critics)
        group.append(self)
        self.group, self.lock = group, group[0].lock

    @property
    def first(self) -> bool:
        return self.group[0] is self

    @contextmanager
    def turn(self) -> Iterator[None]:
        with self.lock:
            self.workers.use(self.name)
            yield

    def start(self) -> None:
        if self.first:
            super().start()
            for other in self.group[1:]:
                other.workers, other.servers = self.workers, self.servers

    def _worker(self, role: str) -> RayClassWithInitArgs:
        policies = {other.name: other.adapter_settings() for other in self.group}
        options = {"config": self._arr, "distillation_config": None, "role": role, "policies": policies}
        return RayClassWithInitArgs(cls=ray.remote(SharedBaseWorker), **options)

    def _set_losses(self) -> None:
        for other in self.group:
            other.workers = self.workers
            with other.turn():
                super(SharedRuntime, other)._set_losses()

    def actors(self) -> dict[str, Any]:
        return super().actors() if self.first else {}

    def sleep(self) -> None:
        if self.first:
            super().sleep()

    def sync(self, version: int) -> None:
        """Send all adapters at once: the schedule `sync` has one version for all policies."""
        if self.first:
            super().sync(version)
