"""What the store and an update have of a turn: sampled token ids as tensors; policy, lengths and version in the tag.

Only rows of trained policies have tensors. The row of a frozen policy or an external endpoint is in metrics and
credits, and in no group.

For a critic of the team, a row also has the joint observation of its turn: every agent's latest observation, in the
order of the team, and the acting agent (MAPPO, arXiv 2103.01955). In a joint move, it includes those of all agents.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from marl_verl.episode import Episode, Turn
from marl_verl.episode.messages import Observation, message_text
from marl_verl.models.chat import Chat

MODEL_FIELDS = ("input_ids", "position_ids", "prompts", "responses", "response_mask", "loss_mask")  # of a forward pass
UPDATE_FIELDS = (*MODEL_FIELDS, "old_log_probs", "advantages")  # fields that a worker needs for an update
JOINT = "critic_ids"  # the joint observation, as token ids
CUT = "critic_cut"  # in a row's tag: whether the joint observation was truncated


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


class JointObservations:
    """Adds joint observations to rows, as the last `limit` token ids of `encode(messages)`; `agents` are the team's."""

    def __init__(self, encode: Callable[[list[dict[str, str]]], list[int]], agents: Iterable[str], limit: int) -> None:
        self._encode, self._agents, self._limit = encode, tuple(agents), limit

    @classmethod
    def of(cls, config: Any, agents: Iterable[str]) -> "JointObservations | None":
        """Those of a run, from its resolved config; None without a critic of scope "team"."""
        for critic in (config.get("critics") or {}).values():
            if critic["scope"] == "team":
                template: Mapping[str, Any] = config.data.get("apply_chat_template_kwargs") or {}
                chat = Chat.load(critic["critic"]["model"], template, "the team's critic")
                return cls(chat.encode, agents, int(critic["max_prompt_length"]))
        return None

    def add(
        self, fields: Mapping[str, dict[str, Any]], tags: Mapping[str, dict[str, Any]], episodes: Sequence[Episode]
    ) -> None:
        """Add field `critic_ids` to rows of trained policies, and `critic_cut` to their tags, by the rows' keys."""
        texts = dict[str, str]()
        for episode in episodes:
            texts |= joint_observations(episode, self._agents)
        for key, tensors in fields.items():
            ids = self._encode([{"role": "user", "content": texts[key]}])
            tags[key][CUT] = len(ids) > self._limit
            tensors[JOINT] = torch.tensor(ids[-self._limit :], dtype=torch.int64)


def joint_observations(episode: Episode, agents: Sequence[str]) -> dict[str, str]:
    """Key of the row of each turn of an episode -> the joint observation before it."""
    joint = {record.act.key: record.act.joint for record in episode.journal.acts()}
    moves: dict[int, list[Turn]] = {}
    for turn in episode.turns:
        if (move := joint.get(turn.key)) is not None:
            moves.setdefault(move, []).append(turn)
    latest: dict[str, str] = {}
    texts: dict[str, str] = {}
    for turn in episode.turns:
        move = joint.get(turn.key)
        for seen in [turn] if move is None else moves[move]:
            latest[seen.role] = _shown(seen.observation)
        lines = [f"{agent}: {latest.get(agent, 'nothing yet')}" for agent in agents]
        if not turn.transition:
            texts[turn.row] = "\n".join([*lines, f"now: {turn.agent}"])
    return texts


def _shown(observation: Observation) -> str:
    """An observation as one text; several messages are prefixed with their roles."""
    texts = [message_text(message) for message in observation]
    if len(texts) == 1:
        return texts[0]
    return "\n".join(f"{message['role']}: {text}" for message, text in zip(observation, texts, strict=True))
