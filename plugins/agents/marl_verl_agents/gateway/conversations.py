"""The requests of one agent of an episode as conversations, each in a slot of its own."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from typing import Any

from marl_verl.episode.messages import Message, compared
from marl_verl.episode.turn import Action
from marl_verl_agents.requests import Request
from marl_verl_agents.team_transport import Acts, TeamTransport


class Conversations:
    """The requests of one agent as conversations, each in a slot of its own.

    A request whose messages begin with those of an earlier one and its reply continues that conversation (of several,
    the longest). Another request begins a new one: the first in the agent's unnamed slot, the n-th in "conversation-n".
    """

    def __init__(self) -> None:
        self._ends: dict[bytes, str | None] = {}  # key of a conversation up to its last reply -> its slot
        self._begun = 0

    def slot(self, keys: Sequence[bytes]) -> tuple[str | None, bytes]:
        """(the slot of a request, the key of what it continues). `keys`: of its messages."""
        for key in reversed(keys):
            if key in self._ends:  # it goes on, so nothing else continues it from here
                return self._ends.pop(key), key
        self._begun += 1
        return None if self._begun == 1 else f"conversation-{self._begun}", keys[-1]

    def continues(self, key: bytes, slot: str | None) -> None:
        """Remember where a conversation may go on: after a reply, or again with a request that was given up."""
        self._ends[key] = slot


def _keys(messages: Sequence[Message]) -> list[bytes]:
    """A digest of the first message, the first two, and so on."""
    digest, keys = hashlib.blake2b(digest_size=16), []
    for message in messages:
        digest.update(compared(message).encode())
        keys.append(digest.copy().digest())
    return keys


class EpisodeTransport(TeamTransport):
    """Answers the requests of one agent of an episode; concurrent ones have slots of their own.

    A client that closes its connection gives its request up. If it asks the same again, this is the same turn.

    Attributes:
        unsent: (path, body) -> an answer that its client did not wait for.
    """

    def __init__(self, run: Acts, agents: tuple[str, ...], agent: str, ignored: tuple[str, ...]) -> None:
        super().__init__(run, agents, agent, None, {}, asyncio.get_running_loop(), ignored)
        self._talks = Conversations()
        self._actions: dict[tuple[str | None, bytes, str], Action] = {}
        self.unsent: dict[tuple[str, bytes], tuple[int, Any]] = {}

    async def _acts(self, agent: str, asked: Request) -> list[Action]:
        slot, key = self._talks.slot(_keys(asked.messages))
        try:
            return await self._in_slots(agent, asked, slot)
        except BaseException:
            self._talks.continues(key, slot)
            raise

    async def _act(self, agent: str, asked: Request, slot: str | None) -> Action:
        key = (slot, _keys(asked.messages)[-1], json.dumps(asked.parameters, sort_keys=True))
        action = self._actions.get(key)  # one of several choices of a request that was given up
        if action is None:
            action = self._actions[key] = await super()._act(agent, asked, slot)
        self._talks.continues(_keys((*asked.messages, action.message))[-1], slot)
        return action
