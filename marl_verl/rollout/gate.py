"""A gate before each policy: while its weights change no request of it is under way, so that an action has one version.

`close` holds new requests and returns when those under way have come back; `open` lets the held ones in. A request that
is held does not use up its act's time (`marl.rollout.act_seconds`), but that of its episode.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from marl_verl.episode import Act, Action
from marl_verl.rollout.rollouts import TaskRollouts
from marl_verl.sampling import Candidate


class Gate:
    """Before one policy, in one rollout worker. Its methods belong to the worker's event loop."""

    def __init__(self) -> None:
        self._open, self._empty = asyncio.Event(), asyncio.Event()
        self._open.set()
        self._empty.set()
        self._inside = 0

    @asynccontextmanager
    async def request(self) -> AsyncIterator[None]:
        """Hold until the gate is open, then count as under way until the end of the block."""
        while not self._open.is_set():  # it may have closed again before a held one gets its turn
            await self._open.wait()
        self._inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    async def close(self) -> None:
        """Hold new requests, and wait until none is under way."""
        self._open.clear()
        await self._empty.wait()

    def open(self) -> None:
        """Let requests in."""
        self._open.set()


class GatedRollouts(TaskRollouts):
    """The `Rollouts` of one task whose requests go through the gates of their policies.

    Args:
        gates: policy -> its gate; a policy without one is never held.
    """

    def __init__(self, *args: Any, gates: Mapping[str, Gate]) -> None:
        super().__init__(*args)
        self._gates = gates

    async def act(self, act: Act, session: int, candidate: Candidate = 0, agent: str | None = None) -> Action:
        """As without gates, once the policy's gate is open."""
        gate = self._gates.get(self.scene.agents[agent or act.agent].policy)
        if gate is None:
            return await super().act(act, session, candidate, agent)
        async with gate.request():
            return await super().act(act, session, candidate, agent)
