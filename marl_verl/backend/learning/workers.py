"""verl's training workers of policies and critics: rows may share prefixes, policies may share a model.

A model with `base: shared` has one peft adapter. Its parameters hold the adapter of the policy in use; `use` copies
them out, and those of another policy in. So names, sharding and checkpoint files are those of a policy with a model of
its own.
"""

import gc
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import AutoModelForTokenClassification
from verl.single_controller.base.decorator import Dispatch, register
from verl.trainer.ppo.core_algos import register_policy_loss
from verl.utils import model as verl_model
from verl.utils.device import get_torch_device, set_expandable_segments
from verl.utils.memory_utils import aggressive_empty_cache
from verl.workers.config import TrainingWorkerConfig
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from marl_verl.algo.algorithms.losses import OWN
from marl_verl.backend.learning.prefixes import share_prefixes
from marl_verl.config.parts import loss_named
from marl_verl.errors import noted, shown


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
    """verl's `TrainingWorker` of policies with an optimiser and a schedule each; methods apply to the one in use."""

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
                built = build(module)
                full[name] = [weight.detach().clone() for weight in built.parameters() if weight.requires_grad]
                if name != self.used:
                    module = built.unload()
            return built

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
        get_torch_device().synchronize()  # verl's copies of offloaded parameters to the host may still be running
        for part in self.engine.module.modules():
            if isinstance(part, FSDPModule):
                part.reshard()  # gathered copies would still be of the old adapter
        with torch.no_grad():
            for kept, load, parameter in zip(old.weights, new.weights, self._trained(), strict=True):
                # the part that this rank has; it shares the parameter's memory
                local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
                kept.copy_(local)
                local.copy_(load)
        old.loss, self.loss_fn, self.used = self.loss_fn, new.loss, policy
        self._attach(new)

    def _attach(self, adapter: Adapter) -> None:
        engine, manager = self.engine, self.engine.checkpoint_manager
        engine.optimizer_config = adapter.optim
        engine.optimizer = manager.optimizer = adapter.optimizer
        engine.lr_scheduler = manager.lr_scheduler = adapter.schedule

    def _trained(self) -> list[torch.nn.Parameter]:
        return [weight for weight in self.engine.module.parameters() if weight.requires_grad]


def _shard(weight: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """This rank's part of a weight of the first rank; only that one has it, the others may have meta tensors."""
    if not isinstance(like, DTensor):
        return weight.to(like.device, like.dtype)
    whole = torch.empty(weight.shape, dtype=like.dtype, device=like.device_mesh.device_type)
    if not weight.is_meta:
        whole.copy_(weight)
    return distribute_tensor(whole, like.device_mesh, like.placements).to_local().to(like.device).clone()


class PolicyWorker(ActorRolloutRefWorker):
    """verl's worker; calls with the option `prefixes.SHARE` compute shared prefixes once.

    `adapters`: of policies that share the model (`base: shared`); `use` chooses the one that other methods apply to.
    """

    def __init__(self, *args: Any, adapters: Mapping[str, Adapter] | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._names = list(adapters or ())
        if adapters:
            self.actor_worker_cls = partial(AdapterTraining, adapters=adapters)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def init_model(self) -> None:
        gc.freeze()  # what is loaded stays: verl collects garbage twice, each time for up to a second
        super().init_model()
        for part in filter(None, (self.actor, self.ref)):
            share_prefixes(part.engine)
        aggressive_empty_cache(force_sync=True)  # the servers measure the device's free memory

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def set_loss_fn(self, loss_fn: Any) -> None:
        register_loss(loss_fn.keywords["config"].policy_loss.loss_mode)
        super().set_loss_fn(loss_fn)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def masks(self) -> bool:
        return bool(self.actor.engine.masks)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def use(self, policy: str) -> None:
        self.actor.use(policy)
        if self.rollout is not None:
            self.rollout.adapter = self._names.index(policy)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)  # type: ignore[untyped-decorator]
    async def update_weights(self, global_steps: int | None = None, mode: str = "auto") -> Any:
        """Send the weights, or all adapters. verl's method wakes servers, sends the last adapter, and frees memory."""
        if self._names[1:]:  # as verl's method does: not every container lets processes share expandable segments
            set_expandable_segments(False)
            get_torch_device().empty_cache()
        if self._names and self.config.rollout.free_cache_engine:
            await self.rollout.resume(tags=["weights"])
        for policy in self._names[:-1]:
            self.use(policy)
            weights, peft = self.actor.engine.get_per_tensor_param(self.layered_summon, base_sync_done=True)
            sent = {"peft_config": peft, "base_sync_done": True, "global_steps": global_steps}
            await self.rollout.update_weights(weights, **sent)
        for policy in self._names[-1:]:
            self.use(policy)
        return await super().update_weights(global_steps, mode)


def register_loss(mode: str) -> None:
    """Register a plugin's function with verl, if `policy_loss.loss_mode` names one. MarlError for an unknown loss."""
    if not mode.startswith(OWN):
        return
    label = f"loss '{mode.removeprefix(OWN)}'"
    function: Any = loss_named(mode.removeprefix(OWN)).function

    def loss(**arguments: Any) -> Any:
        with noted(label):
            returned = function(**arguments)
        match returned:
            case (torch.Tensor() as value, Mapping()) if value.numel() == 1 and value.requires_grad:
                return returned
        raise TypeError(f"{label} must return (scalar tensor with a gradient, metrics), it returned {shown(returned)}")

    register_policy_loss(mode)(loss)


class CriticWorker(TrainingWorker):
    """verl's `TrainingWorker` with a model that returns a value for each token."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def reset(self) -> None:
        verl_model.load_valuehead_model = load_value_model  # verl's engine looks it up when it builds the model
        super().reset()
        share_prefixes(self.engine)
        aggressive_empty_cache(force_sync=True)  # as `init_model`


def load_value_model(local_path: str, torch_dtype: torch.dtype, model_config: Any, trust_remote_code: bool) -> Any:
    """verl's function without flash-attention: a model with one output per token; a head that is missing is 0."""
    options = {"dtype": torch_dtype, "config": model_config, "trust_remote_code": trust_remote_code}
    model, info = AutoModelForTokenClassification.from_pretrained(local_path, **options, output_loading_info=True)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name in info["missing_keys"]:
            if name in parameters and parameters[name].shape[0] == 1:
                parameters[name].zero_()
    return model
