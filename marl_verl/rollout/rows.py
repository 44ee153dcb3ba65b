"""A turn as a training row: token ids as they were sampled, identity and reward components in the row's tag."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch

from marl_verl.episode import Episode, Turn


def row_key(uid: str, session: int, index: int) -> str:
    """verl's key of a row in TransferQueue. A uid holds no `_`."""
    return f"{uid}_{session}_{index}"


def row_tag(turn: Turn, step: int) -> dict[str, Any]:
    """Who acted, where the turn sits, and what it earned: all that an advantage needs, without fetching a token."""
    prompt, response = len(turn.action.prompt_ids), len(turn.action.response_ids)
    version = turn.action.version if turn.action.version is not None else step - 1
    return {
        "status": "success",
        "prompt_len": prompt,
        "response_len": response,
        "seq_len": prompt + response,
        "global_steps": step,
        "min_global_steps": version,
        "max_global_steps": version,
        "uid": turn.uid,
        "session": turn.session,
        "index": turn.index,
        "turn": turn.turn,
        "agent": turn.agent,
        "policy": turn.policy,
        "node": turn.node,
        "parent": turn.parent,
        "rewards": dict(turn.rewards),
        "length": response,
        "obs": observation_id(turn),
        "invalid": turn.invalid is not None,
    }


_IDENTITY = (
    "uid",
    "session",
    "index",
    "turn",
    "agent",
    "policy",
    "node",
    "parent",
    "rewards",
    "length",
    "obs",
    "invalid",
)


def observation_id(turn: Turn) -> str:
    """A short name for what the agent saw: turns with the same one saw the same messages."""
    seen = json.dumps([[message["role"], message["content"]] for message in turn.observation])
    return hashlib.blake2s(seen.encode(), digest_size=8).hexdigest()


def identity(tag: dict[str, Any]) -> dict[str, Any]:
    """The part of a row's tag that the row table takes."""
    return {name: tag[name] for name in _IDENTITY}


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


MODEL_FIELDS = ("input_ids", "position_ids", "prompts", "responses", "response_mask", "loss_mask")
"""What a worker needs to run its model over rows."""

UPDATE_FIELDS = (*MODEL_FIELDS, "old_log_probs", "advantages")
"""What a worker needs to learn from them."""


def episode_rows(episode: Episode, step: int) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """(key, fields, tag) of every turn with a sampled token: without one there is nothing to learn from."""
    return [
        (row_key(turn.uid, turn.session, turn.index), row_fields(turn), row_tag(turn, step))
        for turn in episode.turns
        if turn.action.response_ids
    ]
