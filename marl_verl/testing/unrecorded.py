"""Tools that a framework calls by a client of its own, which no journal records and every replay would repeat."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from marl_verl.episode import ReplayMismatch


@contextmanager
def no_mcp_calls(what: str) -> Iterator[None]:
    """Raise ReplayMismatch if the block, a replay of a whole journal, calls a tool of an MCP server."""
    session: Any = getattr(sys.modules.get("mcp.client.session"), "ClientSession", None)
    if session is None:  # the first run did not import it
        yield
        return
    called: list[str] = []
    call = session.call_tool

    async def noted(self: Any, name: str, *args: Any, **more: Any) -> Any:
        called.append(name)
        return await call(self, name, *args, **more)

    session.call_tool = noted
    try:
        yield
    finally:
        session.call_tool = call
    if called:
        why = f"calls MCP tool '{called[0]}' again, by a client that is not recorded"
        raise ReplayMismatch(f"{what}, {why}: use `mcp_server` or `recorded_tool` of marl-verl-agents")
