"""A turn as a row of the store: sampled token ids as tensors; policy, lengths and version in the tag.

Only rows of trained policies have tensors. The row of a frozen policy or an external endpoint has a tag only; it is in
metrics and credits, and in no group. Agents, positions and rewards reach the trainer as a `RowTable`.
"""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import torch

from marl_verl.episode import Turn

MODEL_FIELDS = ("input_ids", "position_ids", "prompts", "responses", "response_mask", "loss_mask")
"""Fields that a worker needs for a forward pass."""
UPDATE_FIELDS = (*MODEL_FIELDS, "old_log_probs", "advantages")  # fields that a worker needs for an update


class Row(NamedTuple):
    """The entry of one turn; `fields` is None for a policy that does not learn."""

    key: str
    fields: dict[str, torch.Tensor] | None
    tag: dict[str, Any]


def row_tag(turn: Turn, step: int) -> dict[str, Any]:
    """A row's tag: what an update reads of a row without its tensors."""
    length = turn.action.length  # for an endpoint, which has no ids, the server's count
    return {
        "response_len": length,
        "seq_len": len(turn.action.prompt_ids) + length,
        "version": turn.action.version if turn.action.version is not None else step - 1,
        "policy": turn.policy,
    }


def row_fields(turn: Turn) -> dict[str, torch.Tensor]:
    """The tensors of a row: prompt [P], response [R] and the inputs of verl's workers, without padding.

    `old_log_probs` are those of sampling; they are replaced where the config requires the trainer to recompute them.
    """
    prompts = torch.tensor(turn.action.prompt_ids, dtype=torch.int64)
    responses = torch.tensor(turn.action.response_ids, dtype=torch.int64)
    mask = torch.ones_like(responses)
    log_probs = torch.tensor(turn.action.log_probs, dtype=torch.float32)
    return {
        "prompts": prompts,
        "responses": responses,
        "input_ids": torch.cat([prompts, responses]),
        "position_ids": torch.arange(len(prompts) + len(responses), dtype=torch.int64),
        "response_mask": mask,
        "loss_mask": mask,
        "rollout_log_probs": log_probs,
        "old_log_probs": log_probs,
    }


def turn_rows(turns: Sequence[Turn], step: int, learning: Collection[str]) -> list[Row]:
    """The rows of a task's turns, in order; only rows of policies in `learning` have tensors."""
    return [Row(turn.row, row_fields(turn) if turn.policy in learning else None, row_tag(turn, step)) for turn in turns]
