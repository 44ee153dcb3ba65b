"""What a critic of the whole team sees: at each turn, the latest observation of every agent so far, and who acts now.

    holder: 3 1 4 1
    asker: nothing yet
    now: holder

Agents are in the order of the team; in a joint move, the observations of that move count for all of them. Encoded with
the tokenizer of the team's critic, and cut on the left at `marl.critic.max_prompt_length`: metric `critic/team/cut` is
the share of such rows. Source: the joint observation of MAPPO, arXiv 2103.01955.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from marl_verl.episode import Episode, Observation, Turn
from marl_verl.errors import MarlError
from marl_verl.rollout.rows import Row, row_key

FIELD = "critic_ids"
"""A row's joint observation in TransferQueue: token ids."""
CUT = "critic_cut"
"""In a row's tag: whether the joint observation was too long."""
NOTHING = "nothing yet"


def joint_observations(episode: Episode, agents: Sequence[str]) -> list[str]:
    """The joint observation before each turn of an episode, in turn order.

    Args:
        agents: of the team, in its order.
    """
    joint = {record.act.key: record.act.joint for record in episode.journal.acts()}
    moves: dict[int, list[Turn]] = {}
    for turn in episode.turns:
        if (move := joint.get(turn.key)) is not None:
            moves.setdefault(move, []).append(turn)
    latest: dict[str, str] = {}
    found = []
    for turn in episode.turns:
        move = joint.get(turn.key)
        for seen in [turn] if move is None else moves[move]:
            latest[seen.agent] = shown(seen.observation)
        lines = [f"{agent}: {latest.get(agent, NOTHING)}" for agent in agents]
        found.append("\n".join([*lines, f"now: {turn.agent}"]))
    return found


def shown(observation: Observation) -> str:
    """An observation as one text; who said what where there are several messages."""
    if len(observation) == 1:
        return observation[0]["content"]
    return "\n".join(f"{message['role']}: {message['content']}" for message in observation)


class JointEncoder:
    """Joint observations as the token ids that the team's critic reads.

    Args:
        model: the critic's `model` part.
        agents: of the team, in its order.
        limit: longest in tokens.
        template: options of the chat template.
    """

    def __init__(
        self, model: Mapping[str, Any], agents: Sequence[str], limit: int, template: Mapping[str, Any]
    ) -> None:
        from verl.utils import hf_tokenizer

        path = model["tokenizer_path"] or model["path"]
        self.tokenizer = hf_tokenizer(path, trust_remote_code=bool(model["trust_remote_code"]))
        if model.get("custom_chat_template"):
            self.tokenizer.chat_template = model["custom_chat_template"]
        if not self.tokenizer.chat_template:
            raise MarlError(f"the tokenizer of the team's critic ({path}) has no chat template")
        self.agents, self.limit = agents, limit
        self._template = dict(template)
        self._encode = functools.lru_cache(maxsize=4096)(self._encode_uncached)

    @classmethod
    def of(cls, config: Any, agents: Iterable[str]) -> JointEncoder | None:
        """The encoder of a run; None without a critic for the whole team.

        Args:
            config: resolved; `critics` are those of `marl_verl.config.resolve`.
        """
        for critic in (config.get("critics") or {}).values():
            if critic["scope"] == "team":
                template = config.data.get("apply_chat_template_kwargs") or {}
                return cls(critic["critic"]["model"], tuple(agents), int(critic["max_prompt_length"]), template)
        return None

    def encode(self, text: str) -> tuple[list[int], bool]:
        """The last `limit` token ids, and whether there were more."""
        ids = self._encode(text)
        return list(ids[-self.limit :]), len(ids) > self.limit

    def _encode_uncached(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": text}],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
            **self._template,
        )
        return ids


def add_joint_observations(rows: Sequence[Row], episodes: Sequence[Episode], encoder: JointEncoder) -> None:
    """Give the rows that somebody learns from their joint observation: field `critic_ids`, and `critic_cut` in the tag.

    Args:
        rows: all turns of the episodes.
    """
    texts = {
        row_key(turn.uid, turn.session, turn.index): text
        for episode in episodes
        for turn, text in zip(episode.turns, joint_observations(episode, encoder.agents), strict=True)
    }
    for row in rows:
        if row.fields is not None:
            ids, row.tag[CUT] = encoder.encode(texts[row.key])
            row.fields[FIELD] = torch.tensor(ids, dtype=torch.int64)
