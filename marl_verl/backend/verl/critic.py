"""A critic on Ray, colocated in the training processes of a policy.

It loads with the policy's model, before a server measures the GPU's free memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from omegaconf import DictConfig
from tensordict import TensorDict
from verl.single_controller.ray import RayClassWithInitArgs

from marl_verl.backend.learning.critic import Critic
from marl_verl.backend.learning.critic_worker import CriticWorker
from marl_verl.backend.verl.devices import Devices, ranks

CRITIC = "critic"
"""The role of a colocated critic in a policy's worker group."""


class RayCritic(Critic):
    """One critic; `devices` are those of its policy."""

    def __init__(self, name: str, settings: DictConfig, devices: Devices, updates: int) -> None:
        super().__init__(name, settings, updates)
        self.lock = devices.lock(self.policy)

    def worker(self) -> RayClassWithInitArgs:
        """The worker class that the policy's worker group starts next to the policy's."""
        config, self._loss = self.training()
        return RayClassWithInitArgs(cls=ray.remote(CriticWorker), config=config)

    def start(self, workers: Any) -> None:
        """Build model and optimiser in the worker group that was made from `worker`."""
        self.workers = workers
        self.workers.reset()
        self.workers.set_loss_fn(self._loss)

    @property
    def data_parallel_size(self) -> int:
        return ranks(self.workers, "train")

    @contextmanager
    def turn(self) -> Iterator[None]:
        with self.lock:
            yield

    def call(self, method: str, data: TensorDict) -> TensorDict:
        with self.turn():
            output: TensorDict = getattr(self.workers, method)(data).get()
            return output
