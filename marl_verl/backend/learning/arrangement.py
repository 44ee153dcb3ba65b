"""The order of a batch's rows in an update: parts of optimiser updates and ranks, and padding rows."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch

from marl_verl.backend.learning.batches import jagged
from marl_verl.backend.learning.forest import Ints, forest_of
from marl_verl.backend.protocol import Rows, RowStore

PADDING = {"response_len": 1, "seq_len": 2, "is_padding": True}  # in the tag of a padding row


def arranged(
    store: RowStore, batch: Rows, updates: int, ranks: int, branches: bool | None, most: int
) -> tuple[Rows, int]:
    """The batch in the order in which workers read it: rank by rank, an equal number of rows for each update.

    An update has the same rows, neighbours in the batch, whatever they share and however many ranks there are. Rows
    that share are on one rank, ranks are balanced by computed tokens, and padding rows fill up.

    Args:
        branches, most: of the forest of an update; None for rows that share nothing.

    Returns:
        The rows, and the number of tokens that are computed in a forward pass of all of them.
    """
    lengths = np.array([tag["seq_len"] for tag in batch.tags])
    shares = np.array_split(np.arange(len(batch)), updates)
    parts, computed = [], 0
    for rows in shares:
        trees, sizes = [np.array([row]) for row in range(len(rows))], lengths[rows]
        if branches is not None:
            tokens = store.get([batch.keys[row] for row in rows], ["input_ids"])["input_ids"].values().numpy()
            forest = forest_of(tokens, lengths[rows], branches, most)
            trees, sizes = forest.rows(), forest.sizes
        computed += int(sizes.sum())
        parts.append(_of_ranks([rows[tree] for tree in trees], sizes, ranks))
    size = max(len(rows) for part in parts for rows in part)
    padding = iter(range(len(batch), size * updates * ranks))
    batch = _padded(store, batch, size * updates * ranks - len(batch))
    filled = [[[*rows, *islice(padding, size - len(rows))] for rows in part] for part in parts]
    return batch.part([row for rank in range(ranks) for part in filled for row in part[rank]]), computed


def _of_ranks(trees: Sequence[Ints], sizes: Ints, ranks: int) -> list[list[int]]:
    """The rows of each rank, equally many if trees allow it: the largest first, to the rank with the fewest tokens."""
    parts: list[list[int]] = [[] for _ in range(ranks)]
    tokens, room = [0] * ranks, -(-sum(map(len, trees)) // ranks)
    for tree in np.argsort(-sizes, kind="stable"):
        free = [rank for rank in range(ranks) if len(parts[rank]) + len(trees[tree]) <= room] or range(ranks)
        rank = min(free, key=tokens.__getitem__)
        parts[rank] += trees[tree].tolist()
        tokens[rank] += int(sizes[tree])
    return [sorted(part) for part in parts]


def _padded(store: RowStore, batch: Rows, count: int) -> Rows:
    """The batch and a number of rows without a response token."""
    if not count:
        return batch
    keys = [f"padding-{batch.keys[0]}-{number}" for number in range(count)]
    zero = torch.zeros(1, dtype=torch.int64)
    fields: dict[str, Any] = {"input_ids": zero.repeat(2), "position_ids": torch.arange(2)}
    fields |= dict.fromkeys(("prompts", "responses", "response_mask", "loss_mask"), zero)
    fields |= dict.fromkeys(("advantages", "old_log_probs", "rollout_log_probs"), torch.zeros(1))
    store.put(keys, {name: jagged([values] * count) for name, values in fields.items()})
    return Rows([*batch.keys, *keys], [*batch.tags, *({**batch.tags[0], **PADDING} for _ in keys)])
