"""verl's real actor update in this process: its worker, FSDP2 on gloo, without Ray, servers or TransferQueue.

`Actor` is a policy whose worker is one real `ActorRolloutRefWorker`, called directly. With several ranks
(`tests/rank.py`) each process has all rows and works on its own part. SGD with learning rate 1 and no gradient clipping
makes (weights before - weights after) the gradient.
"""

import functools
import importlib.metadata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig
from tensordict import TensorDict

from marl_verl.config.compose import compose, with_overrides
from marl_verl.config.resolve import resolve
from marl_verl.config.stored import team_of
from marl_verl.team import TeamConfig

RECIPE = """
defaults: [marl_trainer, _self_]
marl:
  task: {name: inventory}
  workflow: {name: inventory}
  agents: {holder: {policy: one}, asker: {policy: one}}
  policies: {one: {}}
"""
SETTINGS = (
    *("actor_rollout_ref.actor.optim.optimizer=SGD", "actor_rollout_ref.actor.optim.lr=1.0"),
    *("actor_rollout_ref.actor.optim.weight_decay=0.0", "actor_rollout_ref.actor.optim.clip_grad=1e9"),
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=12",  # several micro-batches an update
    "actor_rollout_ref.rollout.temperature=0.8",
)


@dataclass(frozen=True)
class Row:
    """One turn: token ids, its advantage, and how far (nats a token) the other two policies are from the actor.

    Attributes:
        moved: log pi - log pi_old per response token: how far the actor is from where its update began.
        gap: log pi_old - log pi_rollout per response token.
    """

    prompt: Sequence[int]
    response: Sequence[int]
    advantage: float
    moved: Sequence[float]
    gap: Sequence[float]


def tokens(row: Row) -> list[int]:
    """Prompt and response."""
    return [*row.prompt, *row.response]


FIRST = Row([3, 9], [12, 7, 20, 8], 1.0, [0.5, -0.5, 0.1, -0.1], [1.0, -0.5, 0.3, 0.0])
SECOND = Row([*FIRST.prompt, *FIRST.response, 5, 5], [25, 13, 6], -0.7, [1.5, -0.4, 0.0], [0.2, 2.0, -1.0])
THIRD = Row([*SECOND.prompt, *SECOND.response, 4], [14, 15], 0.4, [0.01, 0.3], [0.1, 0.9])
TALK = (
    FIRST,
    SECOND,
    THIRD,
    Row(SECOND.prompt, [25, 13, 7, 9], 0.9, [0.0002, 0.0, -0.3, 0.1], [0.0, 0.4, -0.6, 1.5]),  # a sibling of SECOND
    Row([*SECOND.prompt, *SECOND.response, 11], [9], -1.2, [-0.05], [0.6]),  # a second branch below SECOND
    Row(FIRST.prompt, FIRST.response, -0.5, [0.2, 0.0, 0.1, 0.4], [0.0, 0.1, 0.2, 0.3]),  # the same tokens as FIRST
    Row([20, 14], [6, 26, 13], 0.8, [0.0, 0.1, -0.4], [0.5, -0.3, 0.0]),
)
"""Three turns of a conversation, rows that share its beginning, and one that does not."""
UNMOVED = [Row(row.prompt, row.response, row.advantage, [0.0] * len(row.moved), row.gap) for row in TALK]
"""The same with the actor where its update began."""


def put(store: Any, rows: Sequence[Row], log_probs: Sequence[torch.Tensor] | None = None) -> Any:
    """Rows in a store with their advantages, sampled with these log-probs (0 by default). Returns `Rows`."""
    from marl_verl.backend.protocol import Rows
    from marl_verl.backend.rollout.rows import row_fields, row_tag
    from marl_verl.episode import Act, Action, Turn

    keys, tags = [f"u_0_{number}" for number in range(len(rows))], []
    for number, (key, row) in enumerate(zip(keys, rows, strict=True)):
        sampled = [0.0] * len(row.response) if log_probs is None else log_probs[number].tolist()
        action = Action("", [*row.prompt], [*row.response], sampled)
        turn = Turn(Act("holder", str(number), number, number, ()), action, "u", 0, "one")
        tags.append(row_tag(turn, step=1))
        fields = {**row_fields(turn), "advantages": torch.full((len(row.response),), row.advantage)}
        store.put([key], {name: [values] for name, values in fields.items()})
    return Rows(keys, tags)


@contextmanager
def cpu_verl(rank: int = 0, ranks: int = 1, store: Path | None = None) -> Iterator[None]:
    """verl on the CPU platform with a process group; everything is put back afterwards.

    Args:
        store: file by which several ranks find each other.
    """
    import torch.distributed
    import verl  # noqa: F401
    import verl.utils.distributed as distributed
    from verl.plugin.platform import PlatformRegistry, get_platform, set_platform

    from marl_verl.backend.verl.platforms.cpu import CPUPlatform
    from marl_verl.backend.verl.verl_plugin import install_cpu_platform

    variables = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank)}
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**variables, "VERL_ENGINE_DEVICE": "cuda"}.items():
            patch.setenv(name, value)
        patch.setattr(importlib.metadata, "version", importlib.metadata.version)
        patch.setattr(
            distributed, "initialize_global_process_group_ray", distributed.initialize_global_process_group_ray
        )
        before, known = get_platform(), dict(PlatformRegistry._platforms)
        install_cpu_platform()
        set_platform(CPUPlatform())
        found: Any = torch.distributed.FileStore(str(store), ranks) if store else torch.distributed.HashStore()
        if torch.distributed.is_initialized():  # of local workers in this process
            torch.distributed.destroy_process_group()
        torch.distributed.init_process_group("gloo", rank=rank, world_size=ranks, store=found)
        try:
            yield
        finally:
            torch.distributed.destroy_process_group()
            set_platform(before)
            PlatformRegistry._platforms = known


def make_model(folder: Path) -> None:
    """A Qwen3 with 5 thousand parameters, whose distributions are far from uniform."""
    from marl_verl_tiny.factory import make_model as make
    from marl_verl_tiny.factory import make_tokenizer
    from marl_verl_tiny.model import Shape

    words = make_tokenizer([f"w{number}" for number in range(20)])
    model = make(Shape(hidden=16, layers=2, heads=2, kv_heads=1, head_dim=8, mlp=32), words, seed=0)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(10.0)
    model.save_pretrained(folder)
    words.save_pretrained(folder)


@functools.cache
def _composed(folder: Path) -> DictConfig:
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE)
    return compose(recipe, SETTINGS, hardware="cpu")


def whole(weight: Any) -> torch.Tensor:
    """A weight that FSDP2 may have divided."""
    tensor: torch.Tensor = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
    return tensor


@functools.cache
def resolved(model: Path, *change: str) -> tuple[DictConfig, TeamConfig]:
    """The config of a run of one policy, after `SETTINGS`."""
    config = with_overrides(_composed(model.parent), [*change, f"marl.policies.one.model.path={model}"])
    team = team_of(config)
    return resolve(config, team), team


class Actor:
    """A policy that learns with a loss.

    Args:
        model: folder that `make_model` wrote.
        overrides: of the config, after `SETTINGS`.
        make: makes the worker from `config` and `role`; verl's class by default.
        store: of the rows; a `MemoryStore` by default.
    """

    def __init__(self, model: Path, loss: str, *overrides: str, make: Any = None, store: Any = None) -> None:
        from marl_verl_local.session import MemoryStore

        self._model, self.overrides, self.calls = model, overrides, list[str]()
        self._moved: dict[str, torch.Tensor] = {}
        self.store = MemoryStore() if store is None else store
        config = deepcopy(self._config(loss, *overrides)[0].policies.one.actor_rollout_ref)
        if make is None:
            from marl_verl.backend.learning.workers import PolicyWorker as make
        self.worker: Any = make(config=config, role="actor")
        self.worker.init_model()
        self.learn_with(loss, *overrides)

    def _config(self, loss: str, *overrides: str) -> tuple[DictConfig, TeamConfig]:
        return resolved(self._model, f"marl.algorithm.options.loss={loss}", *overrides)

    def learn_with(self, loss: str, *overrides: str) -> None:
        """Set the loss. The model, its weights and the optimiser stay."""
        config, team = self._config(loss, *overrides)
        self.policy = self._policy(team.policies["one"], config)
        self.worker.set_loss_fn(self.policy.loss())

    def _policy(self, policy: Any, config: DictConfig) -> Any:
        from verl.utils import tensordict_utils as tu

        from marl_verl.backend.learning.policy import LearningPolicy

        actor, ranks, rank = self, torch.distributed.get_world_size(), torch.distributed.get_rank()

        class Policy(LearningPolicy):
            data_parallel_size = ranks

            @property
            def masks(self) -> bool:
                return bool(actor.worker.masks())

            def call(self, method: str, batch: Any, fields: Sequence[str], **options: Any) -> Any:
                actor.calls.append(method)
                share = len(batch) // ranks
                keys = batch.keys[rank * share :][:share]
                data = TensorDict(self.store.get(keys, fields), batch_size=share)
                tu.assign_non_tensor(data, temperature=self._arr.rollout.temperature, **options)
                output = getattr(actor.worker, method)(data)
                if method != "update_actor":
                    actor.keep(
                        keys, {name: output[name].unbind() for name in ("log_probs", "entropy") if name in output}
                    )
                return output

        return Policy(policy, config, self.store, ())

    def keep(self, keys: Sequence[str], columns: dict[str, Sequence[torch.Tensor]]) -> None:
        """Store what the ranks have computed of their rows, log-probs as if the actor had `moved` since."""
        parts: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(parts, (list(keys), columns))
        for keys, columns in parts:
            for key, values in zip(keys, columns["log_probs"], strict=True):
                if (moved := self._moved.get(key)) is not None:
                    values[-1 - len(moved) : -1] -= moved  # a token's is at the position of the token before it
            self.store.put(keys, columns)

    def weights(self) -> dict[str, torch.Tensor]:
        """The model's weights by name, float64."""
        return {name: whole(weight.detach()).double().clone() for name, weight in self._parameters()}

    def set_weights(self, weights: dict[str, torch.Tensor]) -> None:
        """Write weights into the model, of which this process is the only rank."""
        for name, weight in self._parameters():
            getattr(weight, "_local_tensor", weight).detach().copy_(weights[name])

    def _parameters(self) -> Iterator[tuple[str, Any]]:
        return self.worker.actor.engine.module.named_parameters()

    def update(
        self, rows: Sequence[Row], log_probs: Sequence[torch.Tensor], updates: int = 1
    ) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
        """One update of the policy.

        Args:
            log_probs: of each row's response tokens under the actor, from which what the server sampled with is made.

        Returns:
            weights before - weights after, by name, and the metrics.
        """
        sampled = [
            now - torch.tensor(row.moved) - torch.tensor(row.gap) for row, now in zip(rows, log_probs, strict=True)
        ]
        batch = put(self.store, rows, sampled)
        self._moved = {key: torch.tensor(row.moved) for key, row in zip(batch.keys, rows, strict=True)}
        before = self.weights()
        self.trained, metrics = self.policy.update(batch, updates)
        after = self.weights()
        self.seconds = metrics.pop("update_seconds")
        return {name: before[name] - after[name] for name in before}, metrics
