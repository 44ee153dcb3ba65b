"""A turn as a row: token ids as they were sampled, identity and reward components in the row's tag.

Only rows that a policy learns from have tensors. A turn of a frozen policy, or of a server outside, is its tag alone:
it stands in groups, baselines and metrics as any other, and there is nothing of it to fetch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from marl_verl.episode import Turn
from marl_verl.episode.row import COLUMNS, row

MODEL_FIELDS = ("input_ids", "position_ids", "prompts", "responses", "response_mask", "loss_mask")
"""What a worker needs to run its model over rows."""
UPDATE_FIELDS = (*MODEL_FIELDS, "old_log_probs", "advantages")
"""What a worker needs to learn from them."""


class Row(NamedTuple):
    """What goes to TransferQueue for one turn; without `fields` nobody learns from it."""

    key: str
    fields: dict[str, Any] | None
    tag: dict[str, Any]


def chat_encoder(tokenizer: Any, options: Mapping[str, Any]) -> Callable[[tuple[tuple[str, str], ...]], list[int]]:
    """Maps (role, content) of messages to token ids with the generation prompt; the last 4096 answers are kept."""

    @functools.lru_cache(maxsize=4096)
    def encode(messages: tuple[tuple[str, str], ...]) -> list[int]:
        conversation = [{"role": role, "content": content} for role, content in messages]
        ids: list[int] = tokenizer.apply_chat_template(
            conversation, add_generation_prompt=True, tokenize=True, return_dict=False, **options
        )
        return ids

    return encode


def row_key(uid: str, session: int, index: int) -> str:
    """verl's key of a row in TransferQueue. A uid holds no `_`."""
    return f"{uid}_{session}_{index}"


def row_tag(turn: Turn, step: int) -> dict[str, Any]:
    """Who acted, where the turn sits, and what it earned: all that an advantage needs, without fetching a token."""
    prompt, response = len(turn.action.prompt_ids), turn.action.length  # 0 and what the server says, of one outside
    version = turn.action.version if turn.action.version is not None else step - 1
    return {
        "status": "success",
        "prompt_len": prompt,
        "response_len": response,
        "seq_len": prompt + response,
        "global_steps": step,
        "min_global_steps": version,
        "max_global_steps": version,
        **row(turn),
    }


def identity(tag: dict[str, Any]) -> dict[str, Any]:
    """The part of a row's tag that the row table takes."""
    return {name: tag[name] for name in COLUMNS}


def row_fields(turn: Turn) -> dict[str, Any]:
    """The tensors of a row: prompt [P], response [R] and what verl's workers read, each of its own length.

    `old_log_probs` are the sampled ones; where the config says to compute them anew, those replace them.
    """
    prompts = torch.tensor(turn.action.prompt_ids, dtype=torch.int64)
    responses = torch.tensor(turn.action.response_ids, dtype=torch.int64)
    mask = torch.ones_like(responses)
    log_probs = torch.tensor(turn.action.log_probs, dtype=torch.float32)
    return {
        "uid": turn.uid,
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
    """The row of every turn, in order; only rows of policies in `learning` have tensors."""
    return [
        Row(
            row_key(turn.uid, turn.session, turn.index),
            row_fields(turn) if turn.policy in learning else None,
            row_tag(turn, step),
        )
        for turn in turns
    ]
