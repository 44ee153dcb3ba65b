"""Train the turns of a conversation as one sequence, with the gradient of separate rows.

A row is a turn: a prompt of P tokens and a response of R. A row that continues another one (`rows.CONTINUES`) has its
prompt and response as the beginning of its prompt, so that its forward pass computes the other one's log-probs, too:

    row a   [p p p p | a a a]                          -> one sequence   [p p p p | a a a q q b b b]
    row b   [p p p p   a a a   q q | b b b]               segments                 1 1 1 0 0 2 2 2

A sequence is the last row of a chain. The numbers are its `segments`: to which row of the chain a token belongs, 0 for
tokens that were not sampled there. Advantages, old log-probs and weights of all rows are placed at their tokens. A
conversation of T turns costs O(T) tokens instead of O(T^2).

The loss is computed from rows: `loss_of_rows` cuts the log-probs of a sequence back into rows before verl's loss sees
them. So every aggregation over tokens or rows, sequence ratios, KL and entropy terms are those of unmerged rows, and
only floating-point rounding differs. Rows are merged within an optimiser update, whose rows stay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

from marl_verl.backend.learning.batches import KEPT_FIELDS, jagged, of_responses, rows_of_nested
from marl_verl.backend.protocol import Rows, RowStore
from marl_verl.backend.rollout.rows import CONTINUES

SEGMENTS = "segments"
"""A field of rows in the store: for each token after the first prompt, the row of the chain, from 1; 0 for none."""
PLACED = ("advantages", "old_log_probs", "rollout_log_probs")
"""Fields with a value per response token, which are placed at the tokens of a sequence."""
LOSS_FIELDS = (
    "response_mask",
    "old_log_probs",
    "advantages",
    "rollout_is_weights",
    "ref_log_prob",
    "values",
    "returns",
)
"""Fields with a value per response token that verl's losses read."""

Share = Sequence[int]
"""The rows of one optimiser update: positions in a batch."""


def chains_of(keys: Sequence[str], continues: Mapping[str, str | None]) -> list[list[int]]:
    """Rows as chains, in the order of their last rows: each row continues the row before it.

    Every row is in one chain. Of several rows that continue the same row, the first one extends it. A row that
    continues an absent row (of another update) extends the row that the absent one continues.

    Args:
        keys: the row keys.
        continues: key -> the key of the row that it continues; None if it continues none.
    """
    place = {key: row for row, key in enumerate(keys)}
    before: dict[int, int] = {}
    extended: set[int] = set()
    for row, key in enumerate(keys):
        earlier = continues.get(key)
        while earlier is not None and (earlier not in place or place[earlier] in extended):
            earlier = continues.get(earlier)
        if earlier is not None:
            before[row] = place[earlier]
            extended.add(place[earlier])
    chains = []
    for last in (row for row in range(len(keys)) if row not in extended):
        chain = [last]
        while chain[-1] in before:
            chain.append(before[chain[-1]])
        chains.append(chain[::-1])
    return chains


def segments_of(prompts: Sequence[int], responses: Sequence[int]) -> torch.Tensor:
    """The `segments` of a chain of rows with these numbers of prompt and response tokens."""
    segments = torch.zeros(prompts[-1] + responses[-1] - prompts[0], dtype=torch.int64)
    for number, (prompt, response) in enumerate(zip(prompts, responses, strict=True), 1):
        segments[prompt - prompts[0] :][:response] = number
    return segments


def rows_of(values: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
    """Values of sequences, nested like their segments, as values of rows, nested: without tokens of no row."""
    numbers = segments.values()
    chosen = numbers > 0
    sequence = torch.repeat_interleave(segments.offsets().diff())
    _, lengths = torch.unique_consecutive(torch.stack([sequence, numbers])[:, chosen], dim=1, return_counts=True)
    return jagged(values.values()[chosen].split(lengths.tolist()))


def sequences_of(values: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
    """The inverse of `rows_of`; 0 at tokens of no row."""
    sequences = values.values().new_zeros(segments.values().shape)
    sequences[segments.values() > 0] = values.values()
    return jagged(sequences.split(segments.offsets().diff().tolist()))


def merge(store: RowStore, batch: Rows, shares: Sequence[Share]) -> tuple[Rows, list[list[int]]] | None:
    """The sequences of a batch of rows, written to the store; None if no row extends another one.

    Args:
        shares: the rows of each optimiser update; rows are merged only within one.

    Returns:
        The sequences, of which those of one row keep their key, and the sequences of each update.
    """
    continues = {key: tag.get(CONTINUES) for key, tag in zip(batch.keys, batch.tags, strict=True)}
    chains = [
        [[share[row] for row in chain] for chain in chains_of([batch.keys[row] for row in share], continues)]
        for share in shares
    ]
    if all(len(chain) == 1 for update in chains for chain in update):
        return None
    fields = ["input_ids", *PLACED]
    columns = {name: rows_of_nested(column) for name, column in store.get(batch.keys, fields).items()}
    prompts, responses = ([tag[name] for tag in batch.tags] for name in ("prompt_len", "response_len"))
    keys: list[str] = []
    tags: list[dict[str, Any]] = []
    merged: dict[str, dict[str, torch.Tensor]] = {}
    segments: list[torch.Tensor] = []
    updates: list[list[int]] = []
    for update in chains:
        updates.append(list(range(len(keys), len(keys) + len(update))))
        for chain in update:
            first, last = prompts[chain[0]], chain[-1]
            segments.append(segments_of([prompts[row] for row in chain], [responses[row] for row in chain]))
            keys.append(batch.keys[last])
            tags.append({**batch.tags[last], "prompt_len": first, "response_len": len(segments[-1])})
            if len(chain) == 1:
                continue
            keys[-1] = f"merged-{keys[-1]}"
            placed = {name: columns[name][last].new_zeros(len(segments[-1])) for name in PLACED}
            for name, row in ((name, row) for name in PLACED for row in chain):
                placed[name][prompts[row] - first :][: responses[row]] = columns[name][row]
            tokens, mask = columns["input_ids"][last], (segments[-1] > 0).to(torch.int64)
            merged[keys[-1]] = {
                **placed,
                "input_ids": tokens,
                "position_ids": torch.arange(len(tokens)),
                "prompts": tokens[:first],
                "responses": tokens[first:],
                "response_mask": mask,
                "loss_mask": mask,
            }
    store.put(list(merged), {name: [sequence[name] for sequence in merged.values()] for name in KEPT_FIELDS})
    store.put(keys, {SEGMENTS: segments})
    return Rows(keys, tags), updates


def loss_of_rows(
    model_output: Mapping[str, Any], data: TensorDict, loss: Callable[..., Any], dp_group: Any = None
) -> Any:
    """A loss of verl's, computed from the rows of merged sequences. Runs in the training workers.

    Args:
        loss: takes `model_output`, `data` and `dp_group`, and computes from a row's log-probs, entropies or values.
    """
    if SEGMENTS not in data:
        return loss(model_output=model_output, data=data, dp_group=dp_group)
    segments = data[SEGMENTS]
    fields = {name: rows_of(data[name], segments) for name in LOSS_FIELDS if name in data}
    output = dict(model_output)
    for name in ("log_probs", "entropy", "values"):
        if output.get(name) is not None:
            rows = rows_of(of_responses(output[name], segments), segments)
            # verl reads the value of a token at the position before it, in rows that have a prompt
            output[name] = jagged([torch.nn.functional.pad(row, (0, 1)) for row in rows_of_nested(rows)])
    mask = fields["response_mask"]
    fields |= {"responses": mask, "prompts": jagged([row[:1] for row in rows_of_nested(mask)])}
    rows = TensorDict(fields, batch_size=len(mask.offsets()) - 1)
    tu.assign_non_tensor(rows, **{name: data[name] for name in ("dp_size", "batch_num_tokens", "global_batch_size")})
    return loss(model_output=output, data=rows, dp_group=dp_group)
