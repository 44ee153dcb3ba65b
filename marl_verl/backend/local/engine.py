"""verl's FSDP engine without sharding: its module is a plain Hugging Face module, which the sampler can call, too.

With one rank FSDP2 shards nothing, but copies every parameter into a second buffer. Forward pass, losses, optimiser and
schedule are verl's, unchanged. In 16-bit precision the module computes, as under FSDP2, with 16-bit copies of float32
parameters: gradients of a micro-batch are 16-bit, their sum is float32.

Uses verl internals: methods of `FSDPEngine`; and torch's `_reparametrize_module`, the core of `functional_call`.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch

from marl_verl.backend.local.one_rank import quiet  # before other modules that import verl.workers

# isort: split
from tensordict import TensorDict
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.nn.utils.stateless import _reparametrize_module
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine, FSDPEngineWithLMHead, FSDPEngineWithValueHead

from marl_verl.backend.local.shards import as_shards
from marl_verl.backend.local.sharing import Shared, micro_batches
from marl_verl.config.model_settings import LARGE

STRATEGY = "marl_local"
"""The name of the engines in verl's registry: `actor.strategy` of a local worker."""
DEVICES = ["cpu", "cuda", "npu"]


def packed(output: Any, output_args: dict[str, Any], micro_batch: TensorDict) -> tuple[dict[str, Any], TensorDict]:
    """Pack padded logits, of which verl would otherwise cut out row by row. Returns its further arguments."""
    lengths = micro_batch["input_ids"].offsets().diff()
    seen = torch.arange(output.logits.shape[1], device=lengths.device) < lengths[:, None]
    output.logits, micro_batch = output.logits[seen][None], micro_batch.copy()
    tu.assign_non_tensor(micro_batch, use_remove_padding=True)
    temperature = output_args["temperature"].repeat_interleave(lengths)
    return {**output_args, "temperature_rmpad": temperature, "pad_size": 0}, micro_batch


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
        with quiet(), as_shards(self.module, self.optimizer, self.device_mesh):
            super().save_checkpoint(*args, **options)

    def load_checkpoint(self, *args: Any, **options: Any) -> None:
        with quiet(), as_shards(self.module, self.optimizer, self.device_mesh):
            super().load_checkpoint(*args, **options)


@EngineRegistry.register(model_type="language_model", backend=STRATEGY, device=DEVICES)
class PlainEngineWithLMHead(PlainEngine, FSDPEngineWithLMHead):
    """The engine of policies and references. Padded rows of large models share what they have in common."""

    _shared: Shared | None = None  # of the micro-batch in progress

    def forward_backward_batch(self, data: TensorDict, *args: Any, **options: Any) -> Any:
        if not self._shares(data):
            return super().forward_backward_batch(data, *args, **options)
        with mock.patch.object(transformer_impl, "prepare_micro_batches", micro_batches):
            return super().forward_backward_batch(data, *args, **options)

    def _shares(self, data: TensorDict) -> bool:
        packed, module = tu.get(data, "use_remove_padding"), self.module
        masks = module.config._attn_implementation == "sdpa" and tu.get(data, "use_dynamic_bsz")
        return bool(masks and not packed) and sum(weight.numel() for weight in module.parameters()) >= LARGE

    def forward_step(self, micro_batch: TensorDict, *args: Any, **options: Any) -> Any:
        if not self._shares(micro_batch):
            return super().forward_step(micro_batch, *args, **options)
        self._shared = Shared(micro_batch, self._autocast_dtype)
        hook = self.module.get_output_embeddings().register_forward_pre_hook(self._shared.select)
        try:
            return super().forward_step(micro_batch, *args, **options)
        finally:
            self._shared = None
            hook.remove()

    def prepare_model_inputs(self, micro_batch: TensorDict) -> Any:
        inputs, output_args = super().prepare_model_inputs(micro_batch)
        return ({**inputs, **self._shared.inputs} if self._shared else inputs), output_args

    def prepare_model_outputs(
        self, output: Any, output_args: dict[str, Any], micro_batch: TensorDict, *rest: Any, **options: Any
    ) -> Any:
        if self._shared is not None:
            output_args, micro_batch = self._shared.arguments(output_args), micro_batch.copy()
            tu.assign_non_tensor(micro_batch, use_remove_padding=True)  # logits are packed
        elif "temperature" in output_args and not tu.get(micro_batch, "use_fused_kernels"):
            output_args, micro_batch = packed(output, output_args, micro_batch)
        return super().prepare_model_outputs(output, output_args, micro_batch, *rest, **options)

    def _gather_and_unpad_packed(self, tensor: torch.Tensor, pad_size: int) -> torch.Tensor:
        return tensor if self._shared is None else self._shared.spread(tensor)


@EngineRegistry.register(model_type="value_model", backend=STRATEGY, device=DEVICES)
class PlainEngineWithValueHead(PlainEngine, FSDPEngineWithValueHead):
    """The engine of critics."""
