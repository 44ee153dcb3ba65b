"""Updates that compute equal prompts once, and logits of sampled tokens only: a third of the time with long prompts.

Rows of a micro-batch with equal prompts are one sequence, in which each response sees the prompt and itself. verl's
outputs and losses see rows as before; only floating-point rounding differs.

    rows         [p p p p | a a a]  [p p p p | b b]  [q q | c c c]
    sequences    [p p p p   a a b]                   [q q   c c]       the last token of a response predicts nothing
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict
from torch.nn.utils.rnn import pad_sequence
from verl.utils import tensordict_utils as tu

LONGEST = 2
"""Responses of a sequence have at most so many times the tokens of its prompt: attention spans all of them."""


def sequences_of(data: TensorDict) -> list[list[int]]:
    """The rows of each sequence: some or all that have one prompt."""
    sequences: dict[tuple[int, ...], list[list[int]]] = {}
    room: dict[tuple[int, ...], int] = {}
    for row, (prompt, size) in enumerate(zip(data["prompts"].unbind(), _lengths(data["responses"]), strict=True)):
        tokens = tuple(prompt.tolist())
        if room.get(tokens, 0) < size:
            sequences.setdefault(tokens, []).append([])
            room[tokens] = LONGEST * len(tokens)
        sequences[tokens][-1].append(row)
        room[tokens] -= size
    return [rows for parts in sequences.values() for rows in parts]


def micro_batches(data: TensorDict, **_: Any) -> tuple[list[TensorDict], list[list[int]]]:
    """verl's `prepare_micro_batches`: whole sequences, at most `max_token_len_per_gpu` tokens of them together.

    Returns the micro-batches, and the rows of each.
    """
    prompts, responses = _lengths(data["prompts"]), _lengths(data["responses"])
    parts: list[list[int]] = []
    room = 0
    for rows in sequences_of(data):
        tokens = prompts[rows[0]] + sum(responses[row] for row in rows)
        if tokens > room:
            parts.append([])
            room = int(tu.get(data, "max_token_len_per_gpu"))
        parts[-1] += rows
        room -= tokens
    return [tu.index_select_tensor_dict(data, rows) for rows in parts], parts


class Shared:
    """The sequences of a micro-batch, and where they predict the sampled tokens (`loss_mask`), of which there are n."""

    def __init__(self, micro_batch: TensorDict, dtype: torch.dtype) -> None:
        tokens, mask = micro_batch["input_ids"], micro_batch["loss_mask"]
        starts, device = tokens.offsets(), tokens.device
        chosen = mask.values().nonzero()[:, 0]
        self._rows = torch.repeat_interleave(mask.offsets().diff())[chosen]
        self._packed = chosen + (starts - mask.offsets())[1:][self._rows] - 1  # places among the tokens of all rows
        self._tokens = int(starts[-1])
        places = torch.zeros(2, self._tokens, dtype=torch.int64, device=device)  # sequence and column of each token
        index, owners = [], []
        prompts, responses, firsts = (
            _lengths(micro_batch["prompts"]),
            _lengths(micro_batch["responses"]),
            starts.tolist(),
        )
        for number, rows in enumerate(sequences_of(micro_batch)):
            column = prompt = prompts[rows[0]]
            index.append([torch.arange(prompt, device=device) + firsts[rows[0]]])
            owners.append([torch.zeros(prompt, dtype=torch.int64, device=device)])
            for owner, row in enumerate(rows, 1):
                size, first = max(responses[row] - 1, 0), firsts[row] + prompt
                own = torch.arange(size, device=device)
                places[0, firsts[row] : firsts[row + 1]] = number
                places[1, firsts[row] : first] = index[-1][0] - firsts[rows[0]]
                places[1, first : first + size] = own + column
                index[-1].append(own + first)
                owners[-1].append(torch.full_like(own, owner))
                column += size
        self._places = places[:, self._packed]
        owner = pad_sequence([torch.cat(parts) for parts in owners], batch_first=True, padding_value=-1)
        sees = (owner[:, None] == 0) | (owner[:, None] == owner[:, :, None])
        hidden = ~(sees & sees.new_ones(sees.shape[1:]).tril())[:, None]
        self.inputs = {
            "attention_mask": torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(
                hidden, torch.finfo(dtype).min
            )
        }
        for name in ("input_ids", "position_ids"):
            values = micro_batch[name].values()
            self.inputs[name] = pad_sequence([values[torch.cat(parts)] for parts in index], batch_first=True)

    def select(self, head: Any, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """What the output layer gets, [1, n, size], of the hidden states of all tokens."""
        return (inputs[0][self._places[0], self._places[1]][None],)

    def arguments(self, packed: dict[str, Any]) -> dict[str, Any]:
        """The arguments of verl's `prepare_model_outputs`, as if sampled tokens were packed rows."""
        labels, temperature = packed["input_ids_rmpad_rolled"][self._packed], packed["temperature"][self._rows]
        return {**packed, "input_ids_rmpad_rolled": labels, "temperature_rmpad": temperature, "pad_size": 0}

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """Values of sampled tokens, [n], at their places among the tokens of all rows; 0 elsewhere."""
        return values.new_zeros(self._tokens).index_copy(0, self._packed, values)


def _lengths(nested: torch.Tensor) -> list[int]:
    return list(nested.offsets().diff().tolist())
