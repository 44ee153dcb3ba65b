"""verl's training workers of policies and critics, whose rows may share what they have in common."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from transformers import AutoModelForTokenClassification
from verl.single_controller.base.decorator import Dispatch, register
from verl.trainer.ppo.core_algos import register_policy_loss
from verl.utils import model as verl_model
from verl.utils.memory_utils import aggressive_empty_cache
from verl.workers.config import TrainingWorkerConfig
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from marl_verl.algo.algorithms.losses import OWN
from marl_verl.backend.learning.adapters import Adapter, AdapterTraining
from marl_verl.backend.learning.prefixes import share_prefixes
from marl_verl.config.parts import loss_named


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
        """Send the weights, or all adapters. verl's method wakes the servers up, sends the last adapter, and frees the
        trainer's memory."""
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
    if mode.startswith(OWN):
        register_policy_loss(mode)(loss_named(mode.removeprefix(OWN)).function)


class CriticWorker(TrainingWorker):
    """verl's `TrainingWorker` with a model that returns a value for each token."""

    def __init__(self, config: TrainingWorkerConfig) -> None:
        verl_model.load_valuehead_model = load_value_model  # verl's engine looks it up when it builds the model
        super().__init__(config)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def reset(self) -> None:
        super().reset()
        share_prefixes(self.engine)


def load_value_model(local_path: str, torch_dtype: torch.dtype, model_config: Any, trust_remote_code: bool) -> Any:
    """Load a model with one output per token; a value head that the folder lacks is initialised to 0. verl's function
    always requests flash-attention."""
    options = {"dtype": torch_dtype, "config": model_config, "trust_remote_code": trust_remote_code}
    model, info = AutoModelForTokenClassification.from_pretrained(local_path, **options, output_loading_info=True)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name in info["missing_keys"]:
            if name in parameters and parameters[name].shape[0] == 1:
                parameters[name].zero_()
    return model
