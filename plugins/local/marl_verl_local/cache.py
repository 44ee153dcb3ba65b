"""Keys and values of the rows that are sampled together, and the attention that reads them.

A row begins at position 0 of its place in the cache, and the rows of a step are the first n places, so that a step
reads views. A prompt is computed without its last token; the first step of decoding computes that one:

    prompts   [m, T] tokens, padded on the right, causal    their keys go to the places of all rows with that prompt
    decoding  [n, 1] tokens, at the rows' own positions     each row sees its positions up to that one
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from marl_verl.errors import MarlError

ATTENTION = "marl_verl_rows"  # name of `attend` among the attention implementations of transformers
AHEAD = 64  # tokens of a row that are reserved before they are needed


def token_bytes(config: Any, itemsize: int) -> int:
    """Bytes of the keys and values of one token, from a model's config and the size of its numbers."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * size * itemsize)


class RowCache:
    """The `past_key_values` of a model's forward: `reserve`, then `begin_prompts` or `begin_step` before each one."""

    def __init__(self) -> None:
        self._layers: list[tuple[Tensor, Tensor]] = []  # keys and values: [places, heads, length, size of a head]
        self._places = self._length = 0
        self._index: Tensor
        self._source: Tensor | None = None
        self._positions: Tensor
        self._seen = 0

    def reserve(self, rows: int, length: int, limit: int) -> None:
        """Have room for `length` tokens of the first rows, which keep what is stored. If there is not, some more is
        reserved: for rows to come, and for tokens up to `limit`."""
        if rows <= self._places and length <= self._length:
            return
        self._places = rows + (rows // 4 if self._layers else 0)
        self._length = min(max(length + AHEAD, length * 3 // 2), limit)
        self._layers = [(self._resized(keys), self._resized(values)) for keys, values in self._layers]

    def _resized(self, stored: Tensor) -> Tensor:
        # zeros: a masked value counts with weight 0, which must not meet a NaN
        new = stored.new_zeros(self._places, stored.shape[1], self._length, stored.shape[3])
        places, length = min(len(new), len(stored)), min(new.shape[2], stored.shape[2])
        new[:places, :, :length] = stored[:places, :, :length]
        return new

    def begin_prompts(self, places: Tensor, source: Tensor) -> None:
        """The forward computes prompts; place `places[i]` gets the keys of its row `source[i]`."""
        self._index, self._source = places, source

    def begin_step(self, index: Tensor, positions: Tensor, seen: int) -> None:
        """The forward computes one token, at `positions` [n], of each of the first n rows (`index`: 0 to n - 1). None
        sees more than `seen` positions."""
        self._index, self._source, self._positions, self._seen = index, None, positions, seen

    def update(self, key: Tensor, value: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store keys and values, [rows, heads, tokens, size of a head]; all that the forward's tokens attend to."""
        if layer == len(self._layers):
            self._layers.append((self._resized(key[:0]), self._resized(value[:0])))
        keys, values = self._layers[layer]
        if self._source is not None:
            tokens = key.shape[2]
            keys[self._index, :, :tokens], values[self._index, :, :tokens] = key[self._source], value[self._source]
            return key, value
        keys[self._index, :, self._positions], values[self._index, :, self._positions] = key[:, :, 0], value[:, :, 0]
        rows = len(self._index)
        return keys[:rows, :, : self._seen], values[:rows, :, : self._seen]

    def move(self, source: Tensor, target: Tensor) -> None:
        """Move rows to the places of rows that left."""
        with torch.inference_mode():
            for stored in self._layers:
                for tensor in stored:
                    tensor[target] = tensor[source]


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention with a `RowCache`. `query`: [rows, heads, tokens, size]; a mask only for a single token. MarlError for
    attention that is not softmax(query key^T scaling) over all positions."""
    if softcap is not None or s_aux is not None or (sliding_window or key.shape[2]) < key.shape[2]:
        name = type(module).__name__
        raise MarlError(f"{name} has attention that the local backend lacks: use the verl backend (marl.run.backend)")
    rows, heads, tokens, size = query.shape
    groups = key.shape[1]
    if tokens == 1:  # the heads that share a key are its tokens: no copy of the keys
        query = query.reshape(rows, groups, heads // groups, size)
        mixed = scaled_dot_product_attention(query, key, value, attention_mask, scale=scaling)
        return mixed.reshape(rows, 1, heads, -1), None
    shared = heads != groups
    mixed = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=shared)
    return mixed.transpose(1, 2), None


AttentionInterface.register(ATTENTION, attend)
