"""How a policy learns from its rows, on every backend: verl's forward passes, rollout correction, and update."""

import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from tensordict import TensorDict
from verl.protocol import DataProto
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.metric import reduce_metrics
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import response_to_nested

from marl_verl.algo.algorithms.losses import OWN
from marl_verl.backend.learning.batches import of_responses
from marl_verl.backend.learning.critic import Critic
from marl_verl.backend.learning.forest import arranged
from marl_verl.backend.learning.prefixes import SHARE
from marl_verl.backend.learning.workers import Adapter
from marl_verl.backend.protocol import Rows, RowStore, Runtime, TrainingWorkers
from marl_verl.backend.rollout.rows import MODEL_FIELDS, UPDATE_FIELDS
from marl_verl.config.parts import loss_named, loss_of
from marl_verl.config.stored import separate_reason, team_of, updates_per_batch
from marl_verl.errors import check
from marl_verl.team import PolicyConfig

WEIGHTS = "rollout_is_weights"
SKIPPED = 3
NO_TEACHER = {"distillation_use_topk": False, "distillation_only": False}


class LearningPolicy(TrainingWorkers, Runtime):
    """A trained policy.

    Args:
        config: the resolved config.
        critics: those beside it, in its workers' processes.
        group: the policies with the same base model before it, which it enters; the first one starts the workers. None
            for a model of its own.
    """

    def __init__(
        self,
        policy: PolicyConfig,
        config: DictConfig,
        store: RowStore,
        critics: Sequence[Critic],
        group: list[Any] | None = None,
    ) -> None:
        Runtime.__init__(self, policy)
        self.critics, self.group, self._adapted = critics, [] if group is None else group, group is not None
        self.group.append(self)
        section = config.policies[policy.name]
        self.config, self.store, self._arr = config, store, section.actor_rollout_ref
        self._correction = section.algorithm.rollout_correction
        self.sleeps = bool(self._arr.rollout.free_cache_engine)  # whether servers sleep while it updates
        self._reference = bool(self._arr.actor.use_kl_loss)
        self._skipped = 0  # steps in a row in which verl skipped every update
        self.teaching = policy.teacher.teaching(self) if policy.teacher else None
        self._shares = (not self.teaching or self.teaching.shares) and separate_reason(config, self._arr.actor) is None
        mode = str(self._arr.actor.policy_loss.loss_mode)
        self.numbered = mode.startswith(OWN) and loss_named(mode.removeprefix(OWN)).numbered
        self._lora = self._arr.model.get("lora_rank", 0) > 0 or self._arr.model.get("lora", {}).get("rank", 0) > 0

    @property
    def first(self) -> bool:
        return self.group[0] is self

    @property
    def seed(self) -> int:
        """The seed of a new adapter."""
        return zlib.crc32(f"{self.config.marl.run.seed} {self.name}".encode())

    @contextmanager
    def turn(self) -> Iterator[None]:
        with self.lock:
            if self._adapted:
                self.workers.use(self.name)
            yield

    def adapters(self) -> dict[str, Adapter]:
        """New adapters of the policies that share its base model; {} for a model of its own."""
        if not self._adapted:
            return {}
        actors = {policy: omega_conf_to_dataclass(policy._arr.actor) for policy in self.group}
        return {policy.name: Adapter(policy.seed, actor.optim) for policy, actor in actors.items()}

    def set_losses(self) -> None:
        """Give the policies of the group their workers, and these the losses of the policies."""
        for policy in self.group:
            policy.workers = self.workers
            with policy.turn():
                self.workers.set_loss_fn(policy.loss())

    @cached_property
    def masks(self) -> bool:
        """Whether the model's attention takes masks (`prefixes.py`)."""
        return bool(self.workers.masks())

    def call(self, method: str, batch: Rows, fields: Sequence[str], **options: Any) -> Any:
        """Call a method of the training workers with fields of rows, and put the columns that it returns into the
        store. Returns the rest: `metrics`."""
        data = TensorDict(self.store.get(batch.keys, fields), batch_size=len(batch))
        tu.assign_non_tensor(data, temperature=self._arr.rollout.temperature, **options)
        output = getattr(self.workers, method)(data)
        self.store.put(batch.keys, {name: value for name, value in output.items() if isinstance(value, torch.Tensor)})
        return output

    def loss(self) -> Any:
        actor = omega_conf_to_dataclass(self._arr.actor)
        return partial(ppo_loss, config=actor) if self.teaching is None else self.teaching.loss(actor)

    def update(self, batch: Rows, updates: int | None = None) -> tuple[Rows, dict[str, float]]:
        """Update the policy from its rows, in key order; their advantages must be in the store.

        Args:
            updates: optimiser steps (mini-batches) per epoch; None: those of a synchronous step.

        Returns:
            The rows as they were trained, with padding rows, and metrics: `grad_norm`, `pg_loss`, ...,
            `update_seconds`; with a rollout correction `rollout_corr/...`. `entropy` is the policy's before the update,
            in nats per token: computed without gradient, with the old log-probs.
        """
        begun, rows, actor, ranks = time.monotonic(), len(batch), self._arr.actor, self.data_parallel_size
        updates = updates_per_batch(self.config, actor) if updates is None else updates
        updates = min(updates, max(1, rows // ranks))  # no update has only padding rows
        metrics = {"tokens/sampled": sum(tag["response_len"] for tag in batch.tags)}
        metrics |= {"tokens/unmerged": sum(tag["seq_len"] for tag in batch.tags)}
        with self.turn():
            branches = self.masks if self._shares and actor.use_dynamic_bsz else None
            most = int(actor.ppo_max_token_len_per_gpu or 0)
            batch, metrics["tokens/computed"] = arranged(self.store, batch, updates, ranks, branches, most)
        fields, options = ["ref_log_prob"] * self._reference, NO_TEACHER
        if self.teaching is not None:  # between turns: its policy may be in a pool that waits for this one
            metrics |= self.teaching.score(batch)
            fields, options = [*fields, *self.teaching.fields], self.teaching.options
        with self.turn():
            if not self._correction.bypass_mode:
                metrics |= self._log_probs(batch, "old_log_probs", "compute_log_prob", entropy=True)
            weights, corrected = correct(self.store, batch, self._correction)
            if self.numbered:
                size, weights = len(batch) // (ranks * updates), [WEIGHTS]
                numbers = [(1 + row // size % updates) * ("source" in tag) for row, tag in enumerate(batch.tags)]
                rows_of = zip(numbers, batch.tags, strict=True)
                self.store.put(batch.keys, {WEIGHTS: [torch.ones(tag["response_len"]) * n for n, tag in rows_of]})
            if self._reference and self._lora:
                self._log_probs(batch, "ref_log_prob", "compute_log_prob", no_lora_adapter=True)
            elif self._reference:
                self._log_probs(batch, "ref_log_prob", "compute_ref_log_prob")
            output = self.call(
                "update_actor",
                batch,
                [*UPDATE_FIELDS, *weights, *fields],
                calculate_entropy=bool(actor.calculate_entropy or actor.entropy_coeff),
                **{SHARE: self._shares},
                **options,
                # the mean over rows counts real rows only: padding rows have no response tokens
                global_batch_size=rows / updates,
                mini_batch_size=len(batch) // updates,
                epochs=actor.ppo_epochs,
                seed=actor.data_loader_seed,
                dataloader_kwargs={"shuffle": actor.shuffle},
            )
        self._check_norms(output["metrics"]["grad_norm"])
        reduced = reduce_metrics(dict(output["metrics"]))
        metrics = {name.removeprefix("actor/"): value for name, value in reduced.items()} | metrics | corrected
        if "mfu" in metrics:  # verl's counts the tokens of all rows
            metrics["mfu"] *= metrics["tokens/computed"] / metrics["tokens/unmerged"]
        metrics["update_seconds"] = time.monotonic() - begun
        return batch, {name: float(value) for name, value in metrics.items()}

    @check
    def _check_norms(self, norms: Sequence[float]) -> Iterator[str]:
        """MarlError if verl skipped every update of `SKIPPED` steps in a row: no gradient was finite. In float16 it
        lowers a loss scale instead."""
        self._skipped = 0 if np.isfinite(norms).any() else self._skipped + 1
        if self._skipped < SKIPPED:
            return
        precision = self._arr.actor.fsdp_config.get("mixed_precision") or {}
        if not PrecisionType.is_fp16(precision.get("param_dtype")):
            loss, _ = loss_of(team_of(self.config), self.name)
            problem = f"the gradient of loss '{loss}' was not finite ({norms[0]}) in any update of {SKIPPED} steps"
            yield f"policy '{self.name}': {problem}: it learnt nothing"

    def _log_probs(
        self, batch: Rows, field: str, call: str, entropy: bool = False, **options: bool
    ) -> dict[str, float]:
        """Put a model's log-probs into the rows. Returns the mean entropy of the response tokens where wanted."""
        options |= {SHARE: self._shares, "calculate_entropy": entropy, "compute_loss": False}
        self.call(call, batch, MODEL_FIELDS, **options)
        data = self.store.get(batch.keys, ["log_probs", "response_mask", *(["entropy"] if entropy else [])])
        mask = data["response_mask"]
        # as the rows have them: a field has one type, and a model may compute in bfloat16
        self.store.put(batch.keys, {field: of_responses(data["log_probs"].float(), mask)})
        if not entropy:
            return {}
        chosen = mask.values().bool()  # padding rows have no response token
        return {"entropy": float(of_responses(data["entropy"], mask).values()[chosen].mean())}


def correct(store: RowStore, batch: Rows, settings: DictConfig) -> tuple[list[str], dict[str, float]]:
    """Apply verl's rollout correction (weights and rejections) to all rows of an update that have `old_log_probs`.

    The servers' numerics, and sometimes their weights, differ from the trainer's. The loss of each token is multiplied
    by a truncated importance weight

        w = min(pi_old / pi_rollout, rollout_is_threshold)    rollout_is=token; the product over a row for "sequence"

    and `rollout_rs` rejects tokens or rows whose ratio is too far from 1. As in verl's V1 trainer, rejected tokens are
    removed from `response_mask` but not from `loss_mask`: they add 0 to a sum and still count in a mean's denominator.
    Padding rows have weight 0 and enter no statistic. Returns the additional fields that the update has to read, and
    verl's metrics (`rollout_corr/...`); both are empty where `algorithm.rollout_correction` is off, as it is with
    `bypass_mode` (`config/resolve.py`).
    """
    if not (settings.rollout_is or settings.rollout_rs):
        return [], {}
    real = [row for row, tag in enumerate(batch.tags) if not tag.get("is_padding")]
    keys, needed = [batch.keys[row] for row in real], ["old_log_probs", "rollout_log_probs", "response_mask"]
    rows = TensorDict(store.get(keys, needed), batch_size=len(keys))
    mask = rows["response_mask"]
    # [rows, longest response], right-padded with zeros
    corrected, metrics = compute_rollout_correction_and_add_to_batch(DataProto(batch=rows.to_padded_tensor()), settings)

    if settings.rollout_rs:
        store.put(keys, {"response_mask": response_to_nested(corrected.batch["response_mask"], mask)})
    if WEIGHTS not in corrected.batch:
        return [], metrics
    weights = dict(zip(real, response_to_nested(corrected.batch[WEIGHTS], mask).unbind(), strict=True))
    store.put(batch.keys, {WEIGHTS: [weights.get(row, torch.zeros(1)) for row in range(len(batch))]})
    return [WEIGHTS], metrics
