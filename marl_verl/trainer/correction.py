"""Rollout correction of one policy's rows: verl's own weights and rejections, computed once a batch.

The servers sample with other numerics, and sometimes other weights, than the trainer computes log-probs with. Per token

    w = min(pi_old / pi_rollout, rollout_is_threshold)      rollout_is=token; the product over a row for "sequence"

multiplies the loss (truncated importance sampling), and `rollout_rs` leaves out tokens or rows that are too far off.
Touches verl: `compute_rollout_correction_and_add_to_batch`, which verl's V1 trainer calls at the same place.
"""

from __future__ import annotations

from typing import Any

import torch
import transfer_queue as tq
from omegaconf import DictConfig
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.protocol import DataProto
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
from verl.workers.utils.padding import response_to_nested

WEIGHTS = "rollout_is_weights"
NEEDED = ["old_log_probs", "rollout_log_probs", "response_mask"]


def is_on(settings: DictConfig) -> bool:
    """Whether `algorithm.rollout_correction` changes an update. It never goes with `bypass_mode` (`config/loss.py`)."""
    return bool(settings.rollout_is or settings.rollout_rs)


def correct(batch: KVBatchMeta, settings: DictConfig) -> tuple[list[str], dict[str, float]]:
    """Weigh a policy's rows, whose `old_log_probs` are in TransferQueue already, and leave out the rejected tokens.

    Rejected tokens leave `response_mask` and not `loss_mask`, as in verl's V1 trainer: they add nothing to a sum, and
    stay in the number that a mean divides by. Padding rows enter no statistic and weigh 0. Returns the fields that the
    update has to read besides its own, and verl's metrics (`rollout_corr/...`).
    """
    real = [row for row, tag in enumerate(batch.tags) if not tag.get("is_padding")]
    keys = [batch.keys[row] for row in real]
    rows = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=NEEDED)
    # [rows, longest response], zeros behind a row's own tokens
    data, metrics = compute_rollout_correction_and_add_to_batch(DataProto(batch=rows.to_padded_tensor()), settings)
    if settings.rollout_rs:
        kept = response_to_nested(data.batch["response_mask"], rows["response_mask"])
        _put(batch, keys, "response_mask", kept)
    if WEIGHTS not in data.batch:
        return [], metrics
    weights = dict(zip(real, response_to_nested(data.batch[WEIGHTS], rows["response_mask"]).unbind(), strict=True))
    padded = [weights.get(row, torch.zeros(tag["response_len"])) for row, tag in enumerate(batch.tags)]
    _put(batch, batch.keys, WEIGHTS, torch.nested.as_nested_tensor(padded, layout=torch.jagged))
    return [WEIGHTS], metrics


def _put(batch: KVBatchMeta, keys: list[str], field: str, values: Any) -> None:
    fields = TensorDict({field: values}, batch_size=len(keys))
    tq.kv_batch_put(keys=keys, partition_id=batch.partition_id, fields=fields)
