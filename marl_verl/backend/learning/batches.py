"""Tensors of rows: nested columns, padding, advantages."""

import warnings
from collections.abc import Collection, Sequence

import numpy as np
import torch
from tensordict import NonTensorData, TensorDict
from verl.utils import tensordict_utils as tu

from marl_verl.algo.advantage import AdvantageResult, FloatArray
from marl_verl.backend.protocol import Rows, RowStore

warnings.filterwarnings("ignore", message="The PyTorch API of nested tensors is in prototype stage")


def put_advantages(store: RowStore, rows: Rows, result: AdvantageResult, learning: Collection[str]) -> None:
    """Write the advantages of n rows to their response tokens, for rows of the policies in `learning`; and those with
    which other policies learn from them."""
    advantages = dict[str, FloatArray]()
    for row, (key, tag) in enumerate(zip(rows.keys, rows.tags, strict=True)):
        if tag["policy"] in learning:
            advantages[key] = result.of_tokens(row, tag["response_len"])
        for other, shared in tag.get("shared", {}).items():
            if (values := result.shared.get(shared["policy"])) is not None:
                advantages[other] = np.full(shared["response_len"], values[row])
    if advantages:
        tokens = torch.from_numpy(np.concatenate([*advantages.values()])).float()
        store.put([*advantages], {"advantages": tokens.split([*map(len, advantages.values())])})


def jagged(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """Tensors of different lengths as one nested tensor."""
    return _nested(torch.cat([*rows]), torch.tensor([*map(len, rows)], device=rows[0].device))


def rows_of_nested(column: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The rows of a nested tensor; `unbind` takes microseconds for each."""
    return column.values().split(column.offsets().diff().tolist())


of_verl = tu.index_select_tensor_dict  # the local backend replaces it by `select`


def select(batch: TensorDict, rows: Sequence[int]) -> TensorDict:
    """Rows of a batch, as verl's `index_select_tensor_dict`, without its loop over rows."""
    chosen, columns = torch.as_tensor(rows), {}
    for name, column in batch.items():
        if isinstance(column, torch.Tensor) and column.is_nested:
            places, starts = chosen.to(column.device), column.offsets()
            column = _parts(column, starts[places], starts.diff()[places])
        elif not isinstance(column, NonTensorData):
            return of_verl(batch, chosen)
        columns[name] = column
    return TensorDict(columns, batch_size=len(rows))


def of_responses(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Values of response tokens, nested like `mask`, from those of all tokens: each is at the token before."""
    lengths = mask.offsets().diff()
    return _parts(values, values.offsets()[1:] - lengths - 1, lengths)


def _parts(column: torch.Tensor, starts: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Parts of a nested tensor's values, nested: from these places on, of these lengths."""
    moved = (starts - lengths.cumsum(0) + lengths).repeat_interleave(lengths)
    return _nested(column.values()[moved + torch.arange(len(moved), device=moved.device)], lengths)


def _nested(values: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    least, most = int(lengths.min()), int(lengths.max())
    return torch.nested.nested_tensor_from_jagged(values, offsets, min_seqlen=least, max_seqlen=most)
