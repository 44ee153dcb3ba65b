"""A gate before each policy: while its weights change no request of it is under way, so that an action has one version.

`close` holds new requests and returns when those under way have come back; `open` lets the held ones in. A request that
is held does not use up its act's time (`marl.rollout.act_seconds`), but that of its episode.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


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
