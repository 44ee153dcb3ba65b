"""The rows' store of the verl backend: TransferQueue, from which verl's workers read on every node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta

from marl_verl.backend.protocol import Column, Rows

PARTITION = "train"


class QueueStore:
    """A `RowStore`. `tq.init` must have been called in this process."""

    def put(self, keys: Sequence[str], fields: Mapping[str, Column]) -> None:
        """Write fields of rows.

        `kv_batch_put` would copy all tags several times, which takes most of its time. And TransferQueue divides a
        nested tensor into rows five times, which takes a quarter of the time with strided ones (docs/benchmarks.md).
        """
        tensors = TensorDict({name: _strided(values) for name, values in fields.items()}, batch_size=len(keys))
        client = tq.get_client()
        rows = client.kv_retrieve_meta(keys=list(keys), partition_id=PARTITION, create=True)
        rows.custom_meta = []  # the tags
        client.put(tensors, rows)

    def get(self, keys: Sequence[str], names: Sequence[str]) -> dict[str, torch.Tensor]:
        rows = tq.kv_batch_get(keys=list(keys), partition_id=PARTITION, select_fields=list(names))
        return {name: rows[name] for name in names}

    def remove(self, keys: Sequence[str]) -> None:
        if keys:  # the client refuses an empty list
            tq.kv_clear(keys=list(keys), partition_id=PARTITION)


def meta(rows: Rows, fields: Sequence[str], options: Mapping[str, Any]) -> KVBatchMeta:
    """Rows as the argument of a method of verl's workers, which fetch the fields and get the options with them."""
    described = {"partition_id": PARTITION, "keys": rows.keys, "tags": rows.tags, "fields": list(fields)}
    return KVBatchMeta(**described, extra_info=dict(options))


def _strided(rows: Column) -> torch.Tensor:
    """Tensors of rows, or a jagged tensor, as a nested tensor that is quickly divided into rows."""
    tensors = rows.unbind() if isinstance(rows, torch.Tensor) else rows
    return torch.nested.as_nested_tensor(list(tensors), layout=torch.strided)
