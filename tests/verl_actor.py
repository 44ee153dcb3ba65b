"""verl's real actor update in this process: its worker, FSDP2 on gloo, without Ray, servers or TransferQueue.

`Actor` is a `PolicyRuntime` whose workers are one real `ActorRolloutRefWorker`, called directly, and whose
TransferQueue is a dictionary. With several ranks (`tests/rank.py`) each process has them all and works on its own part
of the rows. SGD with learning rate 1 and no gradient clipping makes (weights before - weights after)
the gradient.
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import DictConfig, OmegaConf

from marl_verl.config.compose import compose, with_overrides
from marl_verl.config.resolve import resolve
from marl_verl.team import read_team

RECIPE = """
defaults: [marl_trainer, _self_]
marl:
  task: {name: inventory}
  workflow: {name: inventory}
  agents: {holder: {policy: one}, asker: {policy: one}}
  policies: {one: {}}
"""
SETTINGS = (
    "actor_rollout_ref.actor.optim.optimizer=SGD",
    "actor_rollout_ref.actor.optim.lr=1.0",
    "actor_rollout_ref.actor.optim.weight_decay=0.0",
    "actor_rollout_ref.actor.optim.clip_grad=1e9",
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


def continued(rows: Sequence[Row]) -> dict[int, int]:
    """Row -> the earlier row with most tokens that its prompt begins with."""
    before: dict[int, int] = {}
    for number, row in enumerate(rows):
        begins = [at for at in range(number) if [*row.prompt][: len(tokens(rows[at]))] == tokens(rows[at])]
        if begins:
            before[number] = max(begins, key=lambda at: (len(tokens(rows[at])), -at))
    return before


class Store:
    """What TransferQueue does for one partition, in this process."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}

    def kv_batch_put(self, keys: list[str], partition_id: str, fields: Any, tags: Any = None) -> None:
        for name in fields.keys():  # noqa: SIM118 - a TensorDict iterates over rows
            values = fields[name]
            values = values.unbind() if isinstance(values, torch.Tensor) else values
            for key, value in zip(keys, values, strict=True):
                self.rows.setdefault(key, {})[name] = value

    def get_client(self) -> Store:
        return self

    def kv_retrieve_meta(self, keys: list[str], partition_id: str, create: bool) -> Any:
        return SimpleNamespace(keys=keys, custom_meta=[{} for _ in keys])

    def put(self, data: Any, metadata: Any) -> None:
        self.kv_batch_put(metadata.keys, "", data)

    def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: list[str] | None = None) -> Any:
        from tensordict import NonTensorStack, TensorDict

        found = {}
        for name in select_fields or list(self.rows[keys[0]]):
            values = [self.rows[key][name] for key in keys]
            if isinstance(values[0], torch.Tensor):
                found[name] = torch.nested.as_nested_tensor(values, layout=torch.jagged)
            else:
                found[name] = NonTensorStack(*values)
        return TensorDict(found, batch_size=len(keys))


class Workers:
    """One real worker in place of the group: what comes out of its `compute_log_prob` is as if the actor had moved."""

    def __init__(self, worker: Any, store: Store, moved: dict[str, torch.Tensor]) -> None:
        self._worker, self._store, self._moved = worker, store, moved
        self._dispatch_info: dict[str, list[int]] = {}
        self._ranks, self._rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
        self.calls: list[str] = []

    def _query_dispatch_info(self, mesh: str) -> list[int]:
        return list(range(self._ranks))

    def _own(self, batch: Any) -> Any:
        """The rows of this rank: verl gives each an equal number, in order."""
        assert len(batch) % self._ranks == 0
        return batch.chunk(self._ranks)[self._rank]

    def _fetch(self, batch: Any) -> Any:
        from verl.utils import tensordict_utils as tu

        data = self._store.kv_batch_get(batch.keys, batch.partition_id, batch.fields)
        for name, value in batch.extra_info.items():
            tu.assign_non_tensor_data(data, name, value)
        return data

    def compute_log_prob(self, batch: Any) -> None:
        self.calls.append("compute_log_prob")
        output = self._worker.compute_log_prob(self._fetch(self._own(batch)))
        own = {name: output[name].unbind() for name in ("log_probs", "entropy") if name in output}
        parts: list[Any] = [None] * self._ranks
        torch.distributed.all_gather_object(parts, own)
        # in order: the keys of padding rows are random in each process
        found = {name: [each for part in parts for each in part[name]] for name in own}
        if "entropy" in found:
            self._store.kv_batch_put(batch.keys, batch.partition_id, {"entropy": found["entropy"]})
        for key, values in zip(batch.keys, found["log_probs"], strict=True):
            if key in self._moved:
                moved = self._moved[key]
                values = values.clone()
                values[-1 - len(moved) : -1] -= (
                    moved  # the log-prob of a token is at the position of the token before it
                )
            self._store.rows[key]["log_probs"] = values

    def update_actor(self, batch: Any) -> Any:
        self.calls.append("update_actor")
        return self._worker.update_actor(self._fetch(self._own(batch)))


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
    from marl_verl_tiny.shape import Shape

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


class Actor:
    """A policy that learns with a loss.

    Args:
        model: folder that `make_model` wrote.
        overrides: of the config, after `SETTINGS`.
        patch: puts verl's use of TransferQueue back.
        make: makes the worker; verl's class by default.
    """

    def __init__(self, model: Path, loss: str, patch: pytest.MonkeyPatch, *overrides: str, make: Any = None) -> None:
        import transfer_queue
        from verl.trainer.ppo import padding_utils
        from verl.workers.engine_workers import ActorRolloutRefWorker

        from marl_verl.backend.verl import batches, merging, policy_runtime
        from marl_verl.backend.verl.devices import Devices
        from marl_verl.config.placement import pools_of

        change = [f"marl.algorithm.options.loss={loss}", f"marl.policies.one.model.path={model}"]
        config = with_overrides(_composed(model.parent), [*change, *overrides])
        marl: Any = OmegaConf.to_container(config.marl, resolve=True)
        team = read_team(marl)
        self.config = resolve(config, team)
        self.config.actor_rollout_ref = self.config.policies.one.actor_rollout_ref
        self.store = Store()
        for user in (padding_utils, policy_runtime, batches, merging):
            assert user.tq is transfer_queue
            patch.setattr(user, "tq", self.store)
        worker: Any = (make or ActorRolloutRefWorker)(config=self.config.actor_rollout_ref, role="actor")
        worker.init_model()
        self._module = worker.actor.engine.module
        self._worker = worker
        devices = Devices(*pools_of(self.config, team), serial=False)
        self.runtime = policy_runtime.PolicyRuntime(team.policies["one"], self.config, devices)
        worker.set_loss_fn(self.runtime.loss())

    def weights(self) -> dict[str, torch.Tensor]:
        """The model's weights by name, float64."""
        return {
            name: weight.full_tensor().detach().double().clone() for name, weight in self._module.named_parameters()
        }

    def update(
        self, rows: Sequence[Row], log_probs: Sequence[torch.Tensor], updates: int = 1
    ) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
        """One `PolicyRuntime.update` over rows.

        Args:
            log_probs: of each row's response tokens under the actor, from which what the server sampled with is made.

        Returns:
            weights before - weights after, by name, and the metrics.
        """
        from transfer_queue import KVBatchMeta

        from marl_verl.backend.rollout.rows import CONTINUES, row_fields, row_tag
        from marl_verl.episode import Act, Action, Turn

        keys, tags, moved, before = [], [], {}, continued(rows)
        for number, (row, now) in enumerate(zip(rows, log_probs, strict=True)):
            sampled = now - torch.tensor(row.moved) - torch.tensor(row.gap)
            action = Action("", list(row.prompt), list(row.response), sampled.tolist())
            turn = Turn(Act("holder", "0", 0, 0, ()), action, "u", number, "one")
            keys.append(turn.row)
            tags.append(row_tag(turn, step=1))
            tags[-1][CONTINUES] = keys[before[number]] if number in before else None
            moved[keys[-1]] = torch.tensor(row.moved)
            advantages = torch.full((len(row.response),), row.advantage)
            self.store.rows[keys[-1]] = {**row_fields(turn), "advantages": advantages}
        self.runtime.workers = Workers(self._worker, self.store, moved)
        before = self.weights()
        _, metrics = self.runtime.update(KVBatchMeta(partition_id="train", keys=keys, tags=tags), updates)
        after = self.weights()
        del metrics["update_seconds"]
        return {name: before[name] - after[name] for name in before}, metrics
