"""The policies of a run in this process: each samples with the weights that it trains."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict
from verl.utils import hf_tokenizer
from verl.utils import tensordict_utils as tu
from verl.utils.torch_dtypes import PrecisionType

from marl_verl.backend.learning.batches import jagged, rows_of_nested
from marl_verl.backend.learning.critic import Critic
from marl_verl.backend.learning.policy import LearningPolicy
from marl_verl.backend.local import one_rank
from marl_verl.backend.local.server import LocalServer
from marl_verl.backend.local.worker import LocalCritic, LocalWorkers  # before other imports of verl
from marl_verl.backend.policies import Policies
from marl_verl.backend.protocol import Column, Rows, Runtime
from marl_verl.events import timed
from marl_verl.team import PolicyConfig
from marl_verl.threads import in_order


class TrainedPolicy(LearningPolicy):
    """A trained policy, and the critics beside it."""

    workers: LocalWorkers
    server: LocalServer

    def start(self) -> None:
        with timed(self.seconds, "model"):
            torch.manual_seed(self.seed)  # of new adapters
            self.workers = LocalWorkers(self._arr, self._reference and not self._lora)
            self.workers.init_model()
            self.set_losses()
            self.server = server_of(self.workers.model, self._arr)
            for critic in self.critics:
                critic.start(LocalCritic(critic.training()[0]))

    def client(self) -> LocalServer:
        return self.server

    @property
    def masks(self) -> bool:
        return bool(self.workers.masks())

    def call(self, method: str, batch: Rows, fields: Sequence[str], **options: Any) -> Any:
        data = TensorDict(self.store.get(batch.keys, fields), batch_size=len(batch))
        tu.assign_non_tensor(data, temperature=self._arr.rollout.temperature, **options)
        output = getattr(self.workers, method)(data)
        columns = {name: value for name, value in output.items() if isinstance(value, torch.Tensor)}
        self.store.put(batch.keys, columns)
        return output

    def sync(self, version: int) -> None:
        self.server.version = version  # the weights are those of the sampler already


class FrozenPolicy(Runtime):
    """A policy that acts and never learns; or the past versions of one, with one snapshot at a time, of step `step`."""

    step = 0

    def __init__(self, policy: PolicyConfig, config: DictConfig) -> None:
        super().__init__(policy)
        self._arr = config.policies[policy.name].actor_rollout_ref

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

    def call(self, method: str, data: TensorDict) -> Any:
        return getattr(self.workers, method)(data)


class LocalPolicies(Policies):
    """`Policies` that compute one after another, each with all cores or the GPU."""

    critic, frozen, learner, together = LocalCriticRuntime, FrozenPolicy, TrainedPolicy, staticmethod(in_order)
    shares_base = False


def load_model(path: str, settings: DictConfig) -> torch.nn.Module:
    """A model that only samples, with the data type and the attention of the policy's settings."""
    from transformers import AutoModelForCausalLM
    from verl.utils.device import get_device_id

    options: dict[str, Any] = OmegaConf.to_container(settings.model.override_config)  # type: ignore[assignment]
    options |= {"dtype": PrecisionType.to_dtype(settings.rollout.dtype)}
    options |= {"trust_remote_code": settings.model.trust_remote_code}
    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(path, **options)
    return model.to(get_device_id())


def server_of(model: torch.nn.Module, settings: DictConfig) -> LocalServer:
    """The sampler of a model, with the limits of the policy's settings (`actor_rollout_ref`)."""
    rollout, source = settings.rollout, settings.model
    tokenizer = hf_tokenizer(str(source.tokenizer_path or source.path), trust_remote_code=source.trust_remote_code)
    longest = rollout.max_model_len or rollout.prompt_length + rollout.response_length
    dtype = PrecisionType.to_dtype(rollout.dtype)
    return LocalServer(model, tokenizer, int(longest), max_requests=int(rollout.max_num_seqs or 256), dtype=dtype)


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
