"""Connections of the gateway: those without a request are few, bounded in bytes, and soon closed.

Any local user can open a connection. One on which the head of a request has come is not a stranger: the gateway closes
it unless its URL has the token of an episode.
"""

import asyncio
import resource
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

HEAD_SECONDS = 10.0
HEAD_BYTES = 2**18  # as many as asyncio reads at once, so that a first request with its body may come whole


def most_strangers() -> int:
    """Connections without a request: half of the files that the process may open."""
    return max(64, min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 2**17) // 2)


class Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """A connection of uvicorn that ends if no request begins on it."""

    strangers: "dict[Connection, asyncio.TimerHandle]"  # the oldest first; of one server

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.read = 0
        if len(self.strangers) >= most_strangers():
            next(iter(self.strangers)).abort()
        self.strangers[self] = asyncio.get_running_loop().call_later(HEAD_SECONDS, self.abort)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None:
            self._forget()
        elif self in self.strangers:
            self.read += len(data)
            if self.read > HEAD_BYTES:
                self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def abort(self) -> None:
        """Close it without an answer."""
        self._forget()
        self.transport.abort()

    def _forget(self) -> None:
        if (timer := self.strangers.pop(self, None)) is not None:
            timer.cancel()
