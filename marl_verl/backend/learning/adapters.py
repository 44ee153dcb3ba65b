"""Training worker of policies with `base: shared`: one model, N adapters with an optimiser and a schedule each.

The model has one peft adapter. Its parameters hold the adapter of the policy in use; `use` copies them out, and those
of another policy in. So names, sharding and checkpoint files are those of a policy with a model of its own.

Uses verl internals: `TrainingWorker` and its FSDP engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor
from verl.single_controller.base.decorator import Dispatch, register
from verl.workers.config import TrainingWorkerConfig
from verl.workers.engine_workers import TrainingWorker

from marl_verl.backend.learning.policy_worker import PolicyWorker


@dataclass(frozen=True)
class AdapterSettings:
    """The seed of a new adapter, and the config of its optimiser and learning-rate schedule."""

    seed: int
    optim: Any


@dataclass
class Adapter:
    """What belongs to one policy: `weights` [local shard of each trained parameter] while another one is in use."""

    settings: AdapterSettings
    weights: list[torch.Tensor] = field(default_factory=list)
    optimizer: Any = None
    schedule: Any = None
    loss: Any = None


class AdapterTraining(TrainingWorker):
    """verl's `TrainingWorker` of several policies: its methods apply to the policy in use."""

    def __init__(self, config: TrainingWorkerConfig, policies: Mapping[str, AdapterSettings]) -> None:
        super().__init__(config)
        self.adapters = {name: Adapter(settings) for name, settings in policies.items()}
        self.used = list(policies)[-1]  # the adapter that is made last
        self.loss_fn: Any = None

    def reset(self) -> None:
        """Build the model, with new adapters as they would be in workers of their own."""
        engine, full = self.engine, dict[str, list[torch.Tensor]]()
        build = engine._build_lora_module

        def build_all(module: Any) -> Any:
            for name, adapter in self.adapters.items():
                torch.manual_seed(adapter.settings.seed)
                made = build(module)
                full[name] = [weight.detach().clone() for weight in made.parameters() if weight.requires_grad]
                if name != self.used:
                    module = made.unload()
            return made

        engine._build_lora_module = build_all
        super().reset()
        for name, adapter in self.adapters.items():
            pairs = zip(full[name], self._trained(), strict=True)
            adapter.weights = [_shard(weight, like) for weight, like in pairs]
            engine.optimizer_config = adapter.settings.optim
            adapter.optimizer = engine._build_optimizer(engine.module)
            adapter.schedule = engine._build_lr_scheduler(adapter.optimizer)
        self._attach(self.adapters[self.used])

    def use(self, policy: str) -> None:
        """Exchange adapter, optimiser, schedule and loss for those of a policy."""
        if policy == self.used:
            return
        old, new = self.adapters[self.used], self.adapters[policy]
        for part in self.engine.module.modules():
            if isinstance(part, FSDPModule):
                part.reshard()  # gathered copies would still be of the old adapter
        with torch.no_grad():
            for kept, load, parameter in zip(old.weights, new.weights, self._trained(), strict=True):
                kept.copy_(_local(parameter))
                _local(parameter).copy_(load)
        old.loss, self.loss_fn, self.used = self.loss_fn, new.loss, policy
        self._attach(new)

    def _attach(self, adapter: Adapter) -> None:
        engine, manager = self.engine, self.engine.checkpoint_manager
        engine.optimizer_config = adapter.settings.optim
        engine.optimizer = manager.optimizer = adapter.optimizer
        engine.lr_scheduler = manager.lr_scheduler = adapter.schedule

    def _trained(self) -> list[torch.nn.Parameter]:
        return [weight for weight in self.engine.module.parameters() if weight.requires_grad]


class SharedBaseWorker(PolicyWorker):
    """verl's worker of a policy, for several policies; `use` chooses the one that its methods apply to."""

    def __init__(self, *args: Any, policies: Mapping[str, AdapterSettings], **options: Any) -> None:
        super().__init__(*args, **options)
        self._names = list(policies)
        self.actor_worker_cls = partial(AdapterTraining, policies=policies)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def use(self, policy: str) -> None:
        """Choose a policy."""
        self.actor.use(policy)
        if self.rollout is not None:
            self.rollout.adapter = self._names.index(policy)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)  # type: ignore[untyped-decorator]
    async def update_weights(self, global_steps: int | None = None, mode: str = "auto") -> Any:
        """Send all adapters. verl's method wakes the servers up, sends the last one, and frees the trainer's memory."""
        *others, last = self._names
        if self.config.rollout.free_cache_engine:
            await self.rollout.resume(tags=["weights"])
        for policy in others:
            self.use(policy)
            weights, peft = self.actor.engine.get_per_tensor_param(self.layered_summon, base_sync_done=True)
            sent = {"peft_config": peft, "base_sync_done": True, "global_steps": global_steps}
            await self.rollout.update_weights(weights, **sent)
        self.use(last)
        return await super().update_weights(global_steps, mode)


def _local(parameter: torch.Tensor) -> torch.Tensor:
    """The part of a parameter that this rank has; it shares the parameter's memory."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def _shard(weight: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """This rank's part of a weight of the first rank; only that one has it, the others may have meta tensors."""
    if not isinstance(like, DTensor):
        return weight.to(like.device, like.dtype)
    device = like.device_mesh.device_type
    whole = torch.empty(weight.shape, dtype=like.dtype, device=device)
    if not weight.is_meta:
        whole.copy_(weight)
    return distribute_tensor(whole, like.device_mesh, like.placements).to_local().to(like.device).clone()
