"""Joint observations for the team's critic: at each turn, every agent's latest observation and the acting agent.

    holder: 3 1 4 1
    asker: nothing yet
    now: holder

Agents are in the order of the team. In a joint move, each agent's row includes the observations of all agents in that
move. The text is encoded with the tokenizer of the team's critic and truncated on the left to
`marl.critic.max_prompt_length`; metric `critic/team/cut` is the share of truncated rows. Source: the joint observation
of MAPPO, arXiv 2103.01955.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from marl_verl.backend.rollout.rows import Row
from marl_verl.episode import Episode, Turn
from marl_verl.episode.messages import Observation, message_text
from marl_verl.models.chat import Chat

FIELD = "critic_ids"  # a field of rows: the joint observation, as token ids
CUT = "critic_cut"  # in a row's tag: whether the joint observation was truncated


def joint_observations(episode: Episode, agents: Sequence[str]) -> list[str]:
    """The joint observation before each turn of an episode, in turn order; `agents` in the order of the team."""
    joint = {record.act.key: record.act.joint for record in episode.journal.acts()}
    moves: dict[int, list[Turn]] = {}
    for turn in episode.turns:
        if (move := joint.get(turn.key)) is not None:
            moves.setdefault(move, []).append(turn)
    latest: dict[str, str] = {}
    texts = []
    for turn in episode.turns:
        move = joint.get(turn.key)
        for seen in [turn] if move is None else moves[move]:
            latest[seen.role] = _shown(seen.observation)
        lines = [f"{agent}: {latest.get(agent, 'nothing yet')}" for agent in agents]
        texts.append("\n".join([*lines, f"now: {turn.agent}"]))
    return texts


def _shown(observation: Observation) -> str:
    """An observation as one text; several messages are prefixed with their roles."""
    if len(observation) == 1:
        return message_text(observation[0])
    return "\n".join(f"{message['role']}: {message_text(message)}" for message in observation)


class JointEncoder:
    """Encodes joint observations for the team's critic, truncated to the last `limit` token ids."""

    def __init__(self, model: Any, agents: Sequence[str], limit: int, template: Mapping[str, Any]) -> None:
        self.agents, self.limit = agents, limit
        self._encode = Chat.load(model, template, "the team's critic").encode

    @classmethod
    def of(cls, config: Any, agents: Iterable[str]) -> "JointEncoder | None":
        """The encoder of a run, from its resolved config; None without a critic of scope "team"."""
        for critic in (config.get("critics") or {}).values():
            if critic["scope"] == "team":
                template = config.data.get("apply_chat_template_kwargs") or {}
                return cls(critic["critic"]["model"], tuple(agents), int(critic["max_prompt_length"]), template)
        return None

    def encode(self, text: str) -> tuple[list[int], bool]:
        """(the last `limit` token ids, whether the text was truncated)."""
        ids = self._encode([{"role": "user", "content": text}])
        return list(ids[-self.limit :]), len(ids) > self.limit


def add_joint_observations(rows: Sequence[Row], episodes: Sequence[Episode], encoder: JointEncoder) -> None:
    """Add the joint observation to rows of trained policies: field `critic_ids`, and `critic_cut` in the tag."""
    texts = {
        turn.row: text
        for episode in episodes
        for turn, text in zip(episode.turns, joint_observations(episode, encoder.agents), strict=True)
        if not turn.transition
    }
    for row in rows:
        if row.fields is not None:
            ids, row.tag[CUT] = encoder.encode(texts[row.key])
            row.fields[FIELD] = torch.tensor(ids, dtype=torch.int64)
