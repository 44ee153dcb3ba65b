"""The order of a batch's rows in an update: shares of ranks and optimiser updates, merged turns, padding rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions

from marl_verl.backend.learning.batches import jagged
from marl_verl.backend.learning.merging import SEGMENTS, merge
from marl_verl.backend.protocol import Rows, RowStore

PADDING = {"prompt_len": 1, "response_len": 1, "seq_len": 2, "is_padding": True}
"""In the tag of a padding row."""


def arranged(store: RowStore, batch: Rows, updates: int, ranks: int, merges: bool) -> Rows:
    """The batch in the order in which workers read it: rank by rank, an equal number of rows for each update.

    Padding rows fill it up. With `merges`, the rows of an update that extend one another become one sequence; an update
    has the same rows either way.
    """
    count = updates * ranks
    order = _order(batch.tags, updates, ranks)
    if merges:
        size = len(order) // count
        shares: list[list[int]] = [[] for _ in range(updates)]
        for place, row in enumerate(order):
            if row < len(batch):
                shares[place // size % updates].append(row)
        if (merged := merge(store, batch, [sorted(rows) for rows in shares])) is not None:
            return _of_sequences(store, *merged, ranks)
    return _padded(store, batch, count).part(order)


def _of_sequences(store: RowStore, batch: Rows, updates: Sequence[Sequence[int]], ranks: int) -> Rows:
    """As `arranged`, for a batch of sequences, of which each update has its own."""
    count = len(batch)
    size = -(-max(len(update) for update in updates) // ranks) * ranks
    batch = _padded(store, batch, size * len(updates))
    padding = iter(range(count, len(batch)))
    parts = []
    for update in updates:
        rows = [*update, *(next(padding) for _ in range(size - len(update)))]
        parts.append([[rows[place] for place in part] for part in _balanced([batch.tags[row] for row in rows], ranks)])
    return batch.part([row for rank in range(ranks) for part in parts for row in part[rank]])


def _padded(store: RowStore, batch: Rows, multiple: int) -> Rows:
    """Add rows without a response token until the number of rows is a multiple."""
    count = -len(batch) % multiple
    if not count:
        return batch
    keys = [f"padding-{batch.keys[0]}-{number}" for number in range(count)]
    zero = torch.zeros(1, dtype=torch.int64)
    fields: dict[str, torch.Tensor] = {"input_ids": zero.repeat(2), "position_ids": torch.arange(2)}
    fields |= dict.fromkeys(("prompts", "responses", "response_mask", "loss_mask"), zero) | {SEGMENTS: zero + 1}
    fields |= dict.fromkeys(("advantages", "old_log_probs", "rollout_log_probs"), torch.zeros(1))
    store.put(keys, {name: jagged([values] * count) for name, values in fields.items()})
    return Rows([*batch.keys, *keys], [*batch.tags, *({**batch.tags[0], **PADDING} for _ in keys)])


def _order(tags: Sequence[Mapping[str, Any]], updates: int, ranks: int) -> list[int]:
    """Positions of rows, and of the padding rows after them: tokens balanced over ranks, padding over updates."""
    count = len(tags)
    tags = [*tags, *[PADDING] * (-count % (updates * ranks))]
    order = []
    for part in _balanced(tags, ranks):
        rows, padding = [row for row in part if row < count], [row for row in part if row >= count]
        size = len(part) // updates
        for update in range(updates):  # neighbours stay together: they may be turns of one conversation
            own = padding[updates - 1 - update :: updates]
            order += [*rows[: size - len(own)], *own]
            rows = rows[size - len(own) :]
    return order


def _balanced(tags: Sequence[Mapping[str, Any]], ranks: int) -> list[list[int]]:
    """Positions of rows for each rank, ascending: an equal number of rows, about an equal number of tokens."""
    if ranks == 1:
        return [list(range(len(tags)))]
    lengths = torch.tensor([tag["seq_len"] for tag in tags], dtype=torch.int64)
    parts = get_seqlen_balanced_partitions(calculate_workload(lengths), k_partitions=ranks, equal_size=True)
    return [sorted(part) for part in parts]
