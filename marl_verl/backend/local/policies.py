"""The policies of a run in this process: each samples with the weights that it trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict
from verl.utils import hf_tokenizer
from verl.utils import tensordict_utils as tu
from verl.utils.torch_dtypes import PrecisionType

from marl_verl.algo.algorithms.losses import OWN
from marl_verl.backend.learning.batches import jagged, rows_of_nested
from marl_verl.backend.learning.critic import Critic, Critics
from marl_verl.backend.learning.policy import LearningPolicy, register_loss
from marl_verl.backend.local import one_rank
from marl_verl.backend.local.server import LocalServer
from marl_verl.backend.local.worker import LocalCritic, LocalSharedWorkers, LocalWorkers  # before other imports of verl
from marl_verl.backend.policies import Policies
from marl_verl.backend.protocol import Column, Rows
from marl_verl.backend.runtime import Runtime
from marl_verl.events import timed
from marl_verl.team import PolicyConfig, TeamConfig
from marl_verl.threads import in_order


class LocalPolicies(Policies):
    """`Policies` that compute one after another, each with all cores or the GPU."""

    together = staticmethod(in_order)

    def __init__(self, config: DictConfig, team: TeamConfig, store: MemoryStore) -> None:
        critics = Critics(config, team, store, LocalCriticRuntime, self.together)
        runtimes: dict[str, Runtime] = {}
        sharing: list[SharedPolicy] = []
        for name, policy in team.policies.items():
            if policy.external:
                runtimes[name] = Runtime(policy)
                continue
            section, beside = config.policies[name], critics.beside(name)
            if policy.frozen:
                runtimes[name] = FrozenPolicy(policy, section)
            elif policy.base is None:
                runtimes[name] = TrainedPolicy(policy, config, section, store, critics=beside)
            else:
                runtimes[name] = SharedPolicy(policy, config, section, store, critics=beside, group=sharing)
        super().__init__(runtimes, critics)


class TrainedPolicy(LearningPolicy):
    """A trained policy, and the critics beside it."""

    workers: LocalWorkers
    server: LocalServer

    def __init__(self, *arguments: Any, critics: Sequence[Any]) -> None:
        super().__init__(*arguments)
        self._critics = critics

    def start(self) -> None:
        """Load the model."""
        with timed(self.seconds, "model"):
            torch.manual_seed(self.seed)  # of new adapters
            self.workers = self._workers(self._reference and not self._lora)
            self.workers.init_model()
            self._set_losses()
            self.server = self._server()
            for critic in self._critics:
                critic.start()

    def _workers(self, reference: bool) -> LocalWorkers:
        return LocalWorkers(self._arr, reference)

    def _set_losses(self) -> None:
        if (mode := self._arr.actor.policy_loss.loss_mode).startswith(OWN):
            register_loss(mode)
        self.workers.set_loss_fn(self.loss())

    def _server(self) -> LocalServer:
        return server_of(self.workers.model, self._arr)

    def client(self) -> LocalServer:
        return self.server

    @property
    def masks(self) -> bool:
        return bool(self.workers.masks())

    def call(self, method: str, batch: Rows, fields: Sequence[str], **options: Any) -> Any:
        """See `LearningPolicy`."""
        data = TensorDict(self.store.get(batch.keys, fields), batch_size=len(batch))
        tu.assign_non_tensor(data, temperature=self._arr.rollout.temperature, **options)
        output = getattr(self.workers, method)(data)
        columns = {name: value for name, value in output.items() if isinstance(value, torch.Tensor)}
        self.store.put(batch.keys, columns)
        return output

    def sync(self, version: int) -> None:
        """The weights are those of the sampler already."""
        self.server.version = version


class SharedPolicy(TrainedPolicy):
    """A trained policy with an adapter on a base model that it shares with the others of `group`, in their order."""

    workers: LocalSharedWorkers

    def __init__(self, *arguments: Any, group: list[SharedPolicy], critics: Sequence[Any]) -> None:
        super().__init__(*arguments, critics=critics)
        group.append(self)
        self.group = group

    def start(self) -> None:
        if self.group[0] is self:
            super().start()
            for other in self.group[1:]:
                other.server = self.server

    def _workers(self, reference: bool) -> LocalSharedWorkers:
        settings = {other.name: other.adapter_settings() for other in self.group}
        return LocalSharedWorkers(self._arr, reference, policies=settings)

    def _set_losses(self) -> None:
        for other in self.group:
            other.workers = self.workers
            self.workers.use(other.name)
            super(SharedPolicy, other)._set_losses()
        self.workers.use(self.name)

    @contextmanager
    def turn(self) -> Iterator[None]:
        self.workers.use(self.name)
        yield

    def _server(self) -> LocalServer:
        names = [other.name for other in self.group]
        return server_of(self.workers.model, self._arr, lambda adapter: self.workers.use(names[adapter or 0]))


class FrozenPolicy(Runtime):
    """A policy that acts and never learns; or the past versions of one, with one snapshot at a time, of step `step`."""

    step = 0

    def __init__(self, policy: PolicyConfig, section: DictConfig) -> None:
        super().__init__(policy)
        self._arr = section.actor_rollout_ref

    def start(self) -> None:
        one_rank.join()
        with timed(self.seconds, "model"):
            self.model = load_model(str(self._arr.model.path), self._arr)
            self.server = server_of(self.model, self._arr)
            if self.policy.past is not None:
                self.server.version = self.step

    def client(self) -> LocalServer:
        return self.server

    def load(self, step: int, model: str) -> None:
        """Load a snapshot from a folder; actions report its step from now on. No request may be in flight."""
        self.model.load_state_dict(load_model(model, self._arr).state_dict())
        self.server.version = self.step = step


class LocalCriticRuntime(Critic):
    """A critic in this process."""

    workers: LocalCritic

    def start(self) -> None:
        config, loss = self.training()
        self.workers = LocalCritic(config)
        self.workers.reset()
        self.workers.set_loss_fn(loss)

    def call(self, method: str, data: TensorDict) -> TensorDict:
        output: TensorDict = getattr(self.workers, method)(data)
        return output


def load_model(path: str, settings: DictConfig) -> torch.nn.Module:
    """A model that only samples, with the data type and the attention of the policy's settings."""
    from transformers import AutoModelForCausalLM
    from verl.utils.device import get_device_id

    options: dict[str, Any] = OmegaConf.to_container(settings.model.override_config)  # type: ignore[assignment]
    options |= {"dtype": PrecisionType.to_dtype(settings.rollout.dtype)}
    options |= {"trust_remote_code": settings.model.trust_remote_code}
    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(path, **options)
    return model.to(get_device_id())


def server_of(
    model: torch.nn.Module, settings: DictConfig, use: Callable[[int | None], None] | None = None
) -> LocalServer:
    """The sampler of a model, with the limits of the policy's settings (`actor_rollout_ref`)."""
    rollout, source = settings.rollout, settings.model
    tokenizer = hf_tokenizer(str(source.tokenizer_path or source.path), trust_remote_code=source.trust_remote_code)
    longest = rollout.max_model_len or rollout.prompt_length + rollout.response_length
    dtype = PrecisionType.to_dtype(rollout.dtype)
    return LocalServer(
        model, tokenizer, int(longest), max_requests=int(rollout.max_num_seqs or 256), dtype=dtype, use=use
    )


class MemoryStore:
    """A `RowStore`."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, torch.Tensor]] = {}

    def put(self, keys: Sequence[str], fields: Mapping[str, Column]) -> None:
        for name, column in fields.items():
            values = rows_of_nested(column) if isinstance(column, torch.Tensor) else column
            for key, value in zip(keys, values, strict=True):
                self.rows.setdefault(key, {})[name] = value

    def get(self, keys: Sequence[str], names: Sequence[str]) -> dict[str, torch.Tensor]:
        return {name: jagged([self.rows[key][name] for key in keys]) for name in names}

    def remove(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.rows.pop(key, None)
