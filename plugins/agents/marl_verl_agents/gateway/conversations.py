"""The requests of one agent of an episode as conversations, each in a slot of its own."""

import asyncio
import hashlib
import json
from collections.abc import Sequence
from typing import Any

from marl_verl.episode.effects import Effects
from marl_verl.episode.messages import Message, compared
from marl_verl.episode.turn import Action
from marl_verl_agents.requests import Request
from marl_verl_agents.team_transport import TeamTransport


class EpisodeTransport(TeamTransport):
    """Answers the requests of one agent of an episode as conversations, each in a slot of its own.

    A request whose messages begin with those of an earlier one and its reply continues that conversation (of several,
    the longest). Another request begins a new one: the first in the agent's unnamed slot, the n-th in "conversation-n".
    A client that closes its connection gives its request up. If it asks the same again, this is the same turn.

    Attributes:
        unsent: (path, body) -> an answer that its client did not wait for.
    """

    def __init__(self, run: Effects, agents: tuple[str, ...], agent: str, ignored: tuple[str, ...]) -> None:
        super().__init__(run, agents, agent, None, {}, asyncio.get_running_loop(), ignored)
        self._ends: dict[bytes, str | None] = {}  # key of a conversation up to its last reply -> its slot
        self._conversations = 0
        self._actions: dict[tuple[str | None, bytes, str], Action] = {}
        self.unsent: dict[tuple[str, bytes], tuple[int, Any]] = {}

    async def _acts(self, agent: str, asked: Request, slot: str | None) -> list[Action]:
        keys = _keys(asked.messages)
        key = next((key for key in reversed(keys) if key in self._ends), None)
        if key is None:
            self._conversations += 1
            key, slot = keys[-1], None if self._conversations == 1 else f"conversation-{self._conversations}"
        else:  # it goes on, so nothing else continues it from here
            slot = self._ends.pop(key)
        try:
            if asked.n == 1:
                return [await self._act(agent, asked, slot)]
            return await super()._acts(agent, asked, slot)
        except BaseException:
            self._ends[key] = slot
            raise

    async def _act(self, agent: str, asked: Request, slot: str | None) -> Action:
        key = (slot, _keys(asked.messages)[-1], json.dumps(asked.parameters, sort_keys=True))
        action = self._actions.get(key)  # one of several choices of a request that was given up
        if action is None:
            action = self._actions[key] = await super()._act(agent, asked, slot)
        self._ends[_keys((*asked.messages, action.message))[-1]] = slot
        return action


def _keys(messages: Sequence[Message]) -> list[bytes]:
    """A digest of the first message, the first two, and so on."""
    digest, keys = hashlib.blake2b(digest_size=16), []
    for message in messages:
        digest.update(compared(message).encode())
        keys.append(digest.copy().digest())
    return keys
