"""Training workers in this process: verl's own, constructed and called directly.

Their methods are those of verl's worker groups with a data-parallel size of 1. They take TensorDicts, with options as
non-tensor data, and return TensorDicts. They take options out of the TensorDict, so pass each of them one.
"""

from copy import deepcopy
from typing import Any

from marl_verl.backend.local import one_rank  # before other modules that import verl.workers

# isort: split
from omegaconf import DictConfig, open_dict
from verl.workers.config import TrainingWorkerConfig

from marl_verl.backend.learning.workers import CriticWorker, PolicyWorker
from marl_verl.backend.local.engine import STRATEGY
from marl_verl.backend.local.quick import quick


class LocalWorkers(PolicyWorker):
    """The training worker of a policy with this `actor_rollout_ref`, and of its reference model where it has one.

    New adapters are initialised from torch's global generator: seed it before `init_model`. A reference without a
    precision of its own has the actor's.
    """

    def __init__(self, config: DictConfig, reference: bool = False, **options: Any) -> None:
        config = deepcopy(config)
        with open_dict(config):
            config.actor.strategy = config.ref.strategy = STRATEGY
            if config.ref.fsdp_config.get("mixed_precision") is None:
                config.ref.fsdp_config.mixed_precision = config.actor.fsdp_config.get("mixed_precision")
        with one_rank.environment():
            super().__init__(config=config, role="actor", **options)
        self.role = "actor_ref" if reference else "actor"  # without rollout, which verl's names of roles include

    def init_model(self) -> None:
        with one_rank.environment():
            super().init_model()

    update_actor = quick()(PolicyWorker.update_actor)
    compute_log_prob = quick()(PolicyWorker.compute_log_prob)
    compute_ref_log_prob = quick()(PolicyWorker.compute_ref_log_prob)

    @property
    def model(self) -> Any:
        """The model in training: a Hugging Face or peft module, updated in place, which leaves it in training mode."""
        return self.actor.engine.module


class LocalCritic(CriticWorker):
    """The training worker of a critic, with the config of `Critic.training`."""

    def __init__(self, config: TrainingWorkerConfig) -> None:
        object.__setattr__(config.engine_config, "strategy", STRATEGY)  # frozen; verl sets it like this, too
        with one_rank.environment():
            super().__init__(config)

    train_mini_batch = quick()(CriticWorker.train_mini_batch)
    infer_batch = quick()(CriticWorker.infer_batch)

    def reset(self) -> None:
        with one_rank.environment():
            super().reset()
