"""Training rows in TransferQueue: order, split by policy, advantages and tensors."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from marl_verl.algo.advantage import AdvantageResult
from marl_verl.backend.verl.rollout.rows import UPDATE_FIELDS

warnings.filterwarnings("ignore", message="The PyTorch API of nested tensors is in prototype stage")

PARTITION = "train"
KEPT_FIELDS = (*UPDATE_FIELDS, "rollout_log_probs")
"""Fields of a buffered row: those that an update and the importance correction read."""


def by_policy(batch: KVBatchMeta) -> dict[str, KVBatchMeta]:
    """The rows of each policy, in the order of the batch."""
    rows: dict[str, list[int]] = {}
    for row, tag in enumerate(batch.tags):
        rows.setdefault(tag["policy"], []).append(row)
    return {name: part_of(batch, chosen) for name, chosen in rows.items()}


def part_of(batch: KVBatchMeta, rows: Sequence[int]) -> KVBatchMeta:
    """Some rows of a batch, in this order."""
    keys, tags = [batch.keys[row] for row in rows], [batch.tags[row] for row in rows]
    return KVBatchMeta(partition_id=batch.partition_id, keys=keys, tags=tags)


def put_advantages(batch: KVBatchMeta, result: AdvantageResult, learning: Collection[str]) -> None:
    """Write the advantages of a batch's n rows to their response tokens, for rows of the policies in `learning`."""
    rows = [row for row, tag in enumerate(batch.tags) if tag["policy"] in learning]
    if not rows:
        return
    advantages = [result.of_tokens(row, batch.tags[row]["response_len"]) for row in rows]
    tokens = torch.from_numpy(np.concatenate(advantages)).float()
    put(batch, [batch.keys[row] for row in rows], advantages=tokens.split([len(values) for values in advantages]))


def read_tensors(keys: list[str]) -> dict[str, dict[str, Any]]:
    """Read key -> field -> tensor from TransferQueue."""
    if not keys:
        return {}
    rows = tq.kv_batch_get(keys=keys, partition_id=PARTITION, select_fields=list(KEPT_FIELDS))
    columns = {name: rows[name].unbind() for name in KEPT_FIELDS}
    return {key: {name: column[i].clone() for name, column in columns.items()} for i, key in enumerate(keys)}


def write_tensors(fields: list[dict[str, Any]], keys: list[str], tags: list[Any]) -> None:
    """Write tensors from `read_tensors` back to TransferQueue."""
    if keys:
        columns = list_of_dict_to_tensordict(fields)
        tq.kv_batch_put(keys=keys, partition_id=PARTITION, fields=columns, tags=[dict(tag) for tag in tags])


def put(
    batch: KVBatchMeta,
    keys: list[str],
    tags: list[dict[str, Any]] | None = None,
    **fields: torch.Tensor | Sequence[torch.Tensor],
) -> None:
    """Write fields of rows, each a nested tensor or a tensor per row, to a batch's partition of TransferQueue.

    Without `tags`, those of the rows stay as they are. `kv_batch_put` would copy them several times and write them
    again, which takes most of its time. And TransferQueue divides a nested tensor into rows five times, which takes a
    quarter of the time with strided ones (docs/benchmarks.md).
    """
    tensors = TensorDict({name: _strided(values) for name, values in fields.items()}, batch_size=len(keys))
    if tags is not None:
        tq.kv_batch_put(keys=keys, partition_id=batch.partition_id, fields=tensors, tags=tags)
        return
    client = tq.get_client()
    rows = client.kv_retrieve_meta(keys=keys, partition_id=batch.partition_id, create=True)
    rows.custom_meta = []  # the tags
    client.put(tensors, rows)


def _strided(rows: torch.Tensor | Sequence[torch.Tensor]) -> torch.Tensor:
    """Tensors of rows, or a jagged tensor, as a nested tensor that is quickly divided into rows."""
    tensors = rows.unbind() if isinstance(rows, torch.Tensor) else rows
    return torch.nested.as_nested_tensor(list(tensors), layout=torch.strided)


def jagged(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """Tensors of different lengths as one nested tensor."""
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)
