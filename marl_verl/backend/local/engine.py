"""verl's FSDP engine without sharding: its module is a plain Hugging Face module, which the sampler can call, too.

With one rank FSDP2 shards nothing, but copies every parameter into a second buffer. Forward pass, losses, optimiser and
schedule are verl's, unchanged. In 16-bit precision the module computes, as under FSDP2, with 16-bit copies of float32
parameters: gradients of a micro-batch are 16-bit, their sum is float32.

Checkpoint files are those of one FSDP2 rank, so that a run continues on either backend: verl saves what `state_dict`
returns, which under FSDP2 are DTensors sharded along dimension 0, each with one rank a whole tensor.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch

from marl_verl.backend.local.one_rank import quiet  # before other modules that import verl.workers

# isort: split
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.tensor import DTensor, Shard
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils._pytree import tree_map_only
from verl.utils.device import get_device_id
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine, FSDPEngineWithLMHead, FSDPEngineWithValueHead

STRATEGY = "marl_local"  # the name of the engines in verl's registry: `actor.strategy` of a local worker
DEVICES = ["cpu", "cuda", "npu"]


class PlainEngine(FSDPEngine):
    """Overrides what FSDP does to the module. Nothing is offloaded: no server shares the device."""

    module: Any

    def _build_fsdp_module(self, module: Any) -> Any:
        precision = self.engine_config.mixed_precision or {}
        self._autocast_dtype = PrecisionType.to_dtype(precision.get("param_dtype", "bf16"))
        self.scaler = ShardedGradScaler(growth_interval=400) if self._autocast_dtype == torch.float16 else None
        self._is_offload_param = self._is_offload_optimizer = False
        return module.to(get_device_id())

    def forward_backward_batch(self, *args: Any, **options: Any) -> Any:
        with ExitStack() as self._copies:
            return super().forward_backward_batch(*args, **options)

    def forward_step(self, *args: Any, **options: Any) -> Any:
        if self._autocast_dtype != torch.float32:
            self._copies.close()  # of the micro-batch before; its backward pass needed them for gradient checkpointing
            copies = {name: weight.to(self._autocast_dtype) for name, weight in self.module.named_parameters()}
            self._copies.enter_context(_reparametrize_module(self.module, copies, tie_weights=True))
        return super().forward_step(*args, **options)

    def save_checkpoint(self, *args: Any, **options: Any) -> None:
        with quiet(), as_shards(self.device_mesh, self.module, self.optimizer):
            super().save_checkpoint(*args, **options)

    def load_checkpoint(self, *args: Any, **options: Any) -> None:
        with quiet(), as_shards(self.device_mesh, self.module, self.optimizer):
            super().load_checkpoint(*args, **options)


@EngineRegistry.register(model_type="language_model", backend=STRATEGY, device=DEVICES)
class PlainEngineWithLMHead(PlainEngine, FSDPEngineWithLMHead):
    """The engine of policies and references."""


@EngineRegistry.register(model_type="value_model", backend=STRATEGY, device=DEVICES)
class PlainEngineWithValueHead(PlainEngine, FSDPEngineWithValueHead):
    """The engine of critics."""


@contextmanager
def as_shards(mesh: DeviceMesh, *parts: Any) -> Iterator[None]:
    """Let modules and optimisers save and load their state as DTensors on a mesh of one rank.

    Scalars, such as a count of steps, and buffers stay as they are, as under FSDP2.
    """

    def wrap(tensor: torch.Tensor) -> torch.Tensor:
        return DTensor.from_local(tensor.detach(), mesh, [Shard(0)], run_check=False) if tensor.dim() else tensor

    with ExitStack() as stack:
        for part in filter(None, parts):
            save, load = part.state_dict, part.load_state_dict
            buffers = dict(part.named_buffers()) if isinstance(part, torch.nn.Module) else {}

            def wrapped(save: Any = save, buffers: Any = buffers) -> Any:
                state = save()
                return tree_map_only(torch.Tensor, wrap, state) | {name: state[name] for name in buffers & state.keys()}

            def unwrapped(state: Any, load: Any = load, **options: Any) -> Any:
                return load(tree_map_only(DTensor, DTensor.to_local, state), **options)

            stack.enter_context(mock.patch.object(part, "state_dict", wrapped))
            stack.enter_context(mock.patch.object(part, "load_state_dict", unwrapped))
        yield
