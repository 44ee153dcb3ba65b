"""Critics: value estimates of each turn's observation, and updates towards value targets.

A critic's row is the tokens of the observation before an action, followed by one placeholder token: verl reads the
value of a token at the position before it, which is the last token of the observation. So a row has one value V(o).
The loss is verl's clipped value loss, the mean over rows (PPO2's, as in MAPPO, arXiv 2103.01955):

    L = 1/2 max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2)              c = cliprange_value

Critic rows are sent to the workers directly, not through the store.
"""

from collections.abc import Callable, Iterator, Sequence
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

from marl_verl.backend.learning.batches import jagged, of_responses, rows_of_nested
from marl_verl.backend.learning.prefixes import SHARE
from marl_verl.backend.protocol import Rows, RowStore, TrainingWorkers
from marl_verl.backend.rollout.rows import CUT, JOINT
from marl_verl.config.stored import updates_per_batch
from marl_verl.errors import check
from marl_verl.team import TeamConfig
from marl_verl.threads import at_once

METRICS = ("critic/vf_loss", "critic/vf_clipfrac", "grad_norm", "lr")  # verl's names


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
        metrics = {name.rpartition("/")[2]: float(reduced[name]) for name in METRICS}
        metrics |= {"value": float(values.mean()), "target": float(targets.mean())}
        if (spread := float(targets.var())) > 0:
            metrics["explained_variance"] = 1.0 - float((targets - values).var()) / spread
        return metrics


class Critics:
    """All critics of a run, by name; without any, methods return immediately.

    `make`: (name, config) -> the critic of the backend; `together`: how calls to different critics run. MarlError if a
    critic of scope "policy" has another vocabulary than its policy, whose token ids it reads.
    """

    def __init__(
        self,
        config: DictConfig,
        team: TeamConfig,
        store: RowStore,
        make: Callable[..., Critic],
        together: Callable[..., dict[str, Any]] = at_once,
    ) -> None:
        self.runtimes = {str(name): make(str(name), config) for name in config.get("critics") or ()}
        for critic in self.runtimes.values():
            if critic.scope == "policy":
                _check_vocabulary(critic, config.policies[critic.policy].actor_rollout_ref.model)
        self._store, self._together = store, together
        self._learning = {name for name, policy in team.policies.items() if policy.trained}
        self._rows_of: dict[
            str, tuple[list[int], Sequence[torch.Tensor]]
        ] = {}  # critic -> rows of a batch, their observations
        self._values: NDArray[np.float64]

    def beside(self, policy: str) -> list[Critic]:
        """The critics beside a policy: one or none."""
        return [critic for critic in self.runtimes.values() if critic.policy == policy]

    def values(self, batch: Rows) -> NDArray[np.float64] | None:
        """V of each row [n], NaN for rows that no critic reads; None if there are no critics."""
        if not self.runtimes:
            return None
        values, self._rows_of = np.full(len(batch), np.nan), {}

        def estimate(name: str, critic: Critic) -> None:
            policies = {critic.policy} if critic.scope == "policy" else self._learning
            rows = [row for row, tag in enumerate(batch.tags) if tag["policy"] in policies]
            if rows:
                field = JOINT if critic.scope == "team" else "prompts"
                observations = rows_of_nested(self._store.get([batch.keys[row] for row in rows], [field])[field])
                values[rows] = critic.values(observations)
                self._rows_of[name] = rows, observations

        self._together({name: partial(estimate, name, critic) for name, critic in self.runtimes.items()})
        self._values = values
        return values

    def update(self, batch: Rows, targets: NDArray[np.float64] | None) -> dict[str, float]:
        """Update every critic from the batch for which `values` was called. Returns metrics `critic/NAME/METRIC`.

        `targets`: `AdvantageResult.target`, [n]; None for no update.
        """
        if targets is None:
            return {}

        def learn(name: str) -> dict[str, float]:
            critic, (rows, observations) = self.runtimes[name], self._rows_of[name]
            metrics = critic.update(observations, targets[rows], self._values[rows])
            if critic.scope == "team":
                metrics["cut"] = float(np.mean([batch.tags[row][CUT] for row in rows]))
            return {f"critic/{name}/{metric}": value for metric, value in metrics.items()}

        results = self._together({name: partial(learn, name) for name in self._rows_of})
        return {metric: value for metrics in results.values() for metric, value in metrics.items()}


@check
def _check_vocabulary(critic: Critic, policy: Any) -> Iterator[str]:
    model = critic.config.model
    paths = [str(part.tokenizer_path or part.path) for part in (model, policy)]
    if paths[0] == paths[1]:
        return
    ours, theirs = (hf_tokenizer(path, trust_remote_code=bool(model.trust_remote_code)).get_vocab() for path in paths)
    if ours != theirs:
        yield (
            f"the critic of policy '{critic.policy}' must have the policy's vocabulary, but those of '{paths[0]}' and "
            f"'{paths[1]}' differ. Set marl.critic.model.path to a model of the same family, or leave it out."
        )


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
