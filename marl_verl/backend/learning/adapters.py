"""Training worker of policies with `base: shared`: one model, N adapters with an optimiser and a schedule each.

The model has one peft adapter. Its parameters hold the adapter of the policy in use; `use` copies them out, and those
of another policy in. So names, sharding and checkpoint files are those of a policy with a model of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor
from verl.workers.config import TrainingWorkerConfig
from verl.workers.engine_workers import TrainingWorker


@dataclass
class Adapter:
    """What belongs to one policy: the seed of a new adapter, the config of its optimiser and learning-rate schedule,
    and `weights` [local shard of each trained parameter] while another one is in use."""

    seed: int
    optim: Any
    weights: list[torch.Tensor] = field(default_factory=list)
    optimizer: Any = None
    schedule: Any = None
    loss: Any = None


class AdapterTraining(TrainingWorker):
    """verl's `TrainingWorker` of several policies: its methods apply to the policy in use."""

    def __init__(self, config: TrainingWorkerConfig, adapters: Mapping[str, Adapter]) -> None:
        super().__init__(config)
        self.adapters, self.used = adapters, list(adapters)[-1]  # the adapter that is made last
        self.loss_fn: Any = None

    def reset(self) -> None:
        """Build the model, with new adapters as they would be in workers of their own."""
        engine, full = self.engine, dict[str, list[torch.Tensor]]()
        build = engine._build_lora_module

        def build_all(module: Any) -> Any:
            for name, adapter in self.adapters.items():
                torch.manual_seed(adapter.seed)
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
            engine.optimizer_config = adapter.optim
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
        engine.optimizer_config = adapter.optim
        engine.optimizer = manager.optimizer = adapter.optimizer
        engine.lr_scheduler = manager.lr_scheduler = adapter.schedule

    def _trained(self) -> list[torch.nn.Parameter]:
        return [weight for weight in self.engine.module.parameters() if weight.requires_grad]


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
