"""verl's training workers in this process: its engine without sharding, and two of its functions without loops.

The module is a plain Hugging Face or peft module, updated in place, which the sampler calls, too: with one rank FSDP2
shards nothing, but copies every parameter into a second buffer. Forward pass, losses, optimiser and schedule are
verl's, unchanged. In 16-bit precision the module computes, as under FSDP2, with 16-bit copies of float32 parameters:
gradients of a micro-batch are 16-bit, their sum is float32.

Methods of workers are those of verl's worker groups with a data-parallel size of 1. They take TensorDicts, with options
as non-tensor data, and return TensorDicts. They take options out of the TensorDict, so pass each of them one.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from typing import Any
from unittest import mock

import torch

from marl_verl_local.one_rank import environment, quiet  # before other modules that import verl.workers

# isort: split
from omegaconf import DictConfig, open_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.tensor import DTensor, Shard
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils._pytree import tree_map_only
from verl.utils import tensordict_utils as tu
from verl.utils import torch_functional
from verl.utils.device import get_device_id
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.config import TrainingWorkerConfig
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine, FSDPEngineWithLMHead, FSDPEngineWithValueHead

from marl_verl.backend.learning.batches import select
from marl_verl.backend.learning.workers import CriticWorker, PolicyWorker

STRATEGY = "marl_local"  # the name of the engines in verl's registry: `actor.strategy` of a local worker
DEVICES = ["cpu", "cuda", "npu"]
CHUNK = 1 << 22  # logits of which log-probs are computed at once: 16 MiB in float32


class PlainEngine(FSDPEngine):
    """Overrides what FSDP does to the module. Nothing is offloaded: no server shares the device."""

    module: Any

    def initialize(self) -> None:
        super().initialize()
        save_as_shards(self.device_mesh, self.module, self.optimizer)

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

    save_checkpoint = quiet()(FSDPEngine.save_checkpoint)
    load_checkpoint = quiet()(FSDPEngine.load_checkpoint)


@EngineRegistry.register(model_type="language_model", backend=STRATEGY, device=DEVICES)
class PlainEngineWithLMHead(PlainEngine, FSDPEngineWithLMHead):
    """The engine of policies and references."""


@EngineRegistry.register(model_type="value_model", backend=STRATEGY, device=DEVICES)
class PlainEngineWithValueHead(PlainEngine, FSDPEngineWithValueHead):
    """The engine of critics."""


def save_as_shards(mesh: DeviceMesh, module: Any, optimizer: Any) -> None:
    """Let them save and load the state of one FSDP2 rank, so that a run continues on either backend: tensors as
    DTensors sharded along dimension 0, each whole on a mesh of one rank; scalars and buffers as they are."""

    def wrap(tensor: torch.Tensor) -> torch.Tensor:
        return DTensor.from_local(tensor.detach(), mesh, [Shard(0)], run_check=False) if tensor.dim() else tensor

    def unwrapped(state: Any) -> Any:
        return tree_map_only(DTensor, DTensor.to_local, state)

    def wrap_parameters(module: Any, state: dict[str, Any], *_: Any) -> None:
        for name, _ in module.named_parameters(remove_duplicate=False):
            state[name] = wrap(state[name])

    module.register_state_dict_post_hook(wrap_parameters)
    module.register_load_state_dict_pre_hook(lambda module, state, *_: state.update(unwrapped(state)))
    if optimizer is not None:
        optimizer.register_state_dict_post_hook(lambda _, state: tree_map_only(torch.Tensor, wrap, state))
        optimizer.register_load_state_dict_pre_hook(lambda _, state: unwrapped(state))


def log_probs(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """log softmax(logits)[label] of n tokens, of logits [n, vocabulary]; verl's function may take one at a time."""
    count = max(1, CHUNK // logits.shape[-1])
    if logits.dtype in (torch.float32, torch.float64):
        sums = torch.cat([part.logsumexp(-1) for part in logits.split(count)])
        return logits.gather(-1, labels[:, None])[:, 0] - sums
    pairs = zip(logits.split(count), labels.split(count), strict=True)
    return torch.cat([part.log_softmax(-1).gather(-1, chosen[:, None])[:, 0] for part, chosen in pairs])


@contextmanager
def quick() -> Iterator[None]:
    """Let verl select rows, and log-probs of tokens, without loops: equal numbers, in less time for a small model."""
    with (
        mock.patch.object(tu, "index_select_tensor_dict", select),
        mock.patch.object(torch_functional, "logprobs_from_logits_v2", log_probs),
    ):
        yield


class LocalWorkers(PolicyWorker):
    """The training worker of a policy with this `actor_rollout_ref`, and of its reference model where it has one. New
    adapters are initialised from torch's global generator: seed it before `init_model`."""

    @environment()
    def __init__(self, config: DictConfig, reference: bool = False) -> None:
        config = deepcopy(config)
        with open_dict(config):
            config.actor.strategy = config.ref.strategy = STRATEGY
        super().__init__(config=config, role="actor")
        self.role = "actor_ref" if reference else "actor"  # without rollout, which verl's names of roles include

    init_model = environment()(PolicyWorker.init_model)
    update_actor = quick()(PolicyWorker.update_actor)
    compute_log_prob = quick()(PolicyWorker.compute_log_prob)
    compute_ref_log_prob = quick()(PolicyWorker.compute_ref_log_prob)


class LocalCritic(CriticWorker):
    """The training worker of a critic, with the config of `Critic.training`."""

    @environment()
    def __init__(self, config: TrainingWorkerConfig) -> None:
        object.__setattr__(config.engine_config, "strategy", STRATEGY)  # frozen; verl sets it like this, too
        super().__init__(config)

    reset = environment()(CriticWorker.reset)
    train_mini_batch = quick()(CriticWorker.train_mini_batch)
    infer_batch = quick()(CriticWorker.infer_batch)
