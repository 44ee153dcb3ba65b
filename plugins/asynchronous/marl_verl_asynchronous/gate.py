"""Gates: no request is in flight while a policy's weights change, so every action is sampled by one version."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Gate:
    """Holds requests of one policy in one rollout worker. Call its methods in the worker's event loop."""

    def __init__(self) -> None:
        self._open, self._empty = asyncio.Event(), asyncio.Event()
        self._open.set()
        self._empty.set()
        self._inside = 0

    @asynccontextmanager
    async def request(self) -> AsyncIterator[None]:
        """Wait until the gate is open, then count as in flight until the end of the block."""
        while not self._open.is_set():  # it may close again before this task is scheduled
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
        """Hold new requests, and wait until none is in flight."""
        self._open.clear()
        await self._empty.wait()

    async def open(self) -> None:
        """Release held requests and accept new ones."""
        self._open.set()
