"""Critics: value estimates of each turn's observation, and updates towards value targets.

A critic's row is the tokens of the observation before an action, followed by one placeholder token: verl reads the
value of a token at the position before it, which is the last token of the observation. So a row has one value V(o).
The loss is verl's clipped value loss, the mean over rows (PPO2's, as in MAPPO, arXiv 2103.01955):

    L = 1/2 max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2)              c = cliprange_value

Critic rows are sent to the workers directly, not through the store.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict
from verl.utils import hf_tokenizer
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.metric import reduce_metrics
from verl.workers.config import TrainingWorkerConfig
from verl.workers.utils.losses import value_loss

from marl_verl.backend.learning.batches import jagged, of_responses
from marl_verl.backend.learning.prefixes import SHARE
from marl_verl.backend.protocol import TrainingWorkers
from marl_verl.config.stored import updates_per_batch
from marl_verl.errors import check


class Critic(TrainingWorkers):
    """One critic, beside a policy: it never computes at the same time as the policy's updates.

    Args:
        config: the resolved config; `critics.NAME` is of this one.
    """

    def __init__(self, name: str, config: DictConfig) -> None:
        settings = config.critics[name]
        self.name, self.policy, self.scope = name, str(settings.policy), str(settings.scope)
        self.config: Any = settings.critic
        self._updates = updates_per_batch(config, self.config)
        self._shares = OmegaConf.select(config, "marl.run.share_prefixes") is not False

    def call(self, method: str, data: TensorDict) -> Any:
        """Call a method of the training workers."""
        return getattr(self.workers, method)(data)

    def training(self) -> tuple[TrainingWorkerConfig, Any]:
        """The config of verl's training worker, and its loss."""
        critic = omega_conf_to_dataclass(self.config)
        engine = critic.engine
        engine.use_dynamic_bsz = critic.use_dynamic_bsz
        engine.max_token_len_per_gpu = engine.infer_max_token_len_per_gpu = critic.ppo_max_token_len_per_gpu
        engine.micro_batch_size_per_gpu = engine.infer_micro_batch_size_per_gpu = critic.ppo_micro_batch_size_per_gpu
        config = TrainingWorkerConfig(
            model_type="value_model",
            model_config=critic.model,
            engine_config=engine,
            optimizer_config=critic.optim,
            checkpoint_config=critic.checkpoint,
        )
        return config, partial(value_loss, config=critic)

    def start(self, workers: Any) -> None:
        """Build model and optimiser of the training workers."""
        self.workers = workers
        workers.reset()
        workers.set_loss_fn(self.training()[1])

    def values(self, observations: Sequence[torch.Tensor]) -> NDArray[np.float64]:
        """V of each observation, [n]."""
        short = -len(observations) % self.data_parallel_size
        data = _rows([*observations, *[observations[-1]] * short])
        tu.assign_non_tensor(data, compute_loss=False, temperature=1.0, **{SHARE: self._shares})
        output = self.call("infer_batch", data)
        # the model has an output for every token of a row
        values: NDArray[np.float64] = of_responses(output["values"], data["response_mask"]).values().double().numpy()
        return values[: len(observations)]

    def update(
        self, observations: Sequence[torch.Tensor], targets: NDArray[np.float64], values: NDArray[np.float64]
    ) -> dict[str, float]:
        """Update V towards targets [n]; values [n] are the estimates from before the update (V_old in the loss).

        Returns metrics: `vf_loss`, `vf_clipfrac`, `grad_norm`, `lr`, `value` and `target` (means), and
        `explained_variance` of `values` unless all targets are equal.
        """
        rows = len(observations)
        updates = min(self._updates, max(1, rows // self.data_parallel_size))  # no update has only padding rows
        slots = updates * self.data_parallel_size
        short = -rows % slots
        # each rank's share of each update has rows from the whole batch and at most one padding row
        order = [row for slot in range(slots) for row in range(slot, rows + short, slots)]
        data = _rows([observations[min(row, rows - 1)] for row in order])
        data["values"] = _column(np.pad(values, (0, short))[order])
        data["returns"] = _column(np.pad(targets, (0, short))[order])
        data["loss_mask"] = data["response_mask"] = _column(np.array(order) < rows, torch.int64)
        tu.assign_non_tensor(
            data,
            global_batch_size=rows / updates,
            mini_batch_size=(rows + short) // updates,
            epochs=int(self.config.ppo_epochs),
            seed=int(self.config.data_loader_seed),
            dataloader_kwargs={"shuffle": bool(self.config.shuffle)},
            temperature=1.0,
            **{SHARE: self._shares},
        )
        output = self.call("train_mini_batch", data)
        reduced = reduce_metrics(dict(output["metrics"]))
        names = ("critic/vf_loss", "critic/vf_clipfrac", "grad_norm", "lr")
        metrics = {name.rpartition("/")[2]: float(reduced[name]) for name in names}
        metrics |= {"value": float(values.mean()), "target": float(targets.mean())}
        if (spread := float(targets.var())) > 0:
            metrics["explained_variance"] = 1.0 - float((targets - values).var()) / spread
        return metrics


@check
def check_vocabulary(critic: Critic, policy: Any) -> Iterator[str]:
    """MarlError if a critic has another vocabulary than its policy, whose tokens it reads; `policy`: its model."""
    model = critic.config.model
    paths = [str(part.tokenizer_path or part.path) for part in (model, policy)]
    if paths[0] == paths[1]:
        return
    ours, theirs = (hf_tokenizer(path, trust_remote_code=bool(model.trust_remote_code)).get_vocab() for path in paths)
    if ours != theirs:
        problem = f"the critic of policy '{critic.policy}' must have the policy's vocabulary, but those of '{paths[0]}'"
        yield f"{problem} and '{paths[1]}' differ: set marl.critic.model.path to one of the same family"


def _rows(observations: Sequence[torch.Tensor]) -> TensorDict:
    """Observations as rows in verl's format: prompt [P], a response of one token, and the model's inputs."""
    responses = [ids[-1:] for ids in observations]  # any token: the value is read at the position before it
    inputs = [torch.cat(pair) for pair in zip(observations, responses, strict=True)]
    fields = {"prompts": jagged(observations), "responses": jagged(responses), "input_ids": jagged(inputs)}
    fields["position_ids"] = jagged([torch.arange(len(row)) for row in inputs])
    fields["response_mask"] = fields["loss_mask"] = _column(np.ones(len(inputs)), torch.int64)
    return TensorDict(fields, batch_size=len(inputs))


def _column(values: NDArray[Any], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Values [n] as n rows of length 1."""
    return jagged(torch.tensor(values, dtype=dtype).split(1))
