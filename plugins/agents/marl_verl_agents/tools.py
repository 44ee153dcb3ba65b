"""Recorded tools for frameworks: functions whose calls are effects, and the tools of MCP servers."""

import asyncio
import functools
import inspect
import json
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from marl_verl.episode import CallError, Member, Team
from marl_verl.episode.effects import Effects
from marl_verl_agents.clients import in_loop


def recorded_tool(team: Team | Member, fn: Callable[..., Any], sync: bool = False) -> Callable[..., Any]:
    """A function with the name, signature and docstring of `fn` whose calls are `call` effects of the team, or of an
    agent (`recorded_tool(team["solver"], fn)`): `fn` may be a tool of any framework, and a replay does not repeat it.
    It is async; `sync`: for code in `team.in_thread`. TypeError: `fn` has parameters that cannot be given by name."""
    signature, run, agent, loop = inspect.signature(fn), team.effects, team.name, team.loop
    for name, parameter in signature.parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"a tool function must have named parameters only, got '{name}' of {fn!r}")

    def by_name(arguments: Mapping[str, Any]) -> Any:
        return fn(**arguments)

    by_name.func = fn  # type: ignore[attr-defined]  # whose name the record has

    async def tool(*args: Any, **named: Any) -> Any:
        try:
            bound = signature.bind(*args, **named)
            bound.apply_defaults()
            arguments = dict(bound.arguments)
        except TypeError:  # the call raises it, and counts as a failed call
            arguments = dict(named)
        return await _called(run, by_name, [arguments], agent)

    def in_thread(*args: Any, **named: Any) -> Any:
        return in_loop(loop, lambda: tool(*args, **named))  # type: ignore[arg-type]  # of a run

    return functools.wraps(fn)(in_thread if sync else tool)


async def _called(run: Effects, fn: Callable[..., Any], arguments: Sequence[Any], agent: str | None) -> Any:
    """A call that raises the exception of its function again, live and on replay: frameworks tell exceptions by class.
    CallError if its class is not imported, or cannot be made of its message."""
    try:
        return await run.call(fn, arguments, agent)
    except CallError as error:
        module, _, name = error.kind.rpartition(":")
        kind = getattr(sys.modules.get(module or "builtins"), name, None)
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise
        try:
            original = kind(error.message)
        except Exception:  # noqa: BLE001 - a class with other parameters
            raise error from error.__cause__
        raise original from error


class McpError(Exception):
    """An MCP tool returned an error."""


class McpServer(AbstractAsyncContextManager["McpServer"]):
    """The tools of an MCP server: `async with mcp_server(team, "http://localhost:8000/mcp") as server:`, then
    `await server.tools()` and `await server.call(name, arguments)`. Both are `call` effects: the list of the team, the
    call of the team or the agent.

    The connection opens with the first call that a journal does not answer, so that a replay starts no server, and
    closes at the end of the `async with` block.

    Args:
        server: a URL, a command as a list of words, or what `mcp.Client` takes.
    """

    def __init__(self, team: Team | Member, server: Any) -> None:
        self._run, self._agent = team.effects, team.name
        if isinstance(server, Sequence) and not isinstance(server, str):
            from mcp import StdioServerParameters

            server = StdioServerParameters(command=server[0], args=list(server[1:]))
        self._server = server
        command = getattr(server, "command", None)
        self.name = server if isinstance(server, str) else str(command or getattr(server, "name", "server"))
        if words := getattr(server, "args", None):  # which may be secret: two servers of a program have two names
            self.name += f"#{zlib.crc32(json.dumps(words).encode()):08x}"
        self._client: asyncio.Future[Any] | None = None
        self._done = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def tools(self) -> list[dict[str, Any]]:
        """The tools as `tools` of an act. A call of the team: no agent uses a tool by it."""
        return await _called(self._run, self._list, [self.name], None)

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """The text of a tool's result. McpError if the tool returns an error."""
        return str(await _called(self._run, self._call, [self.name, tool, dict(arguments)], self._agent))

    async def __aexit__(self, *_: object) -> None:
        self._done.set()
        if self._task is not None and self._client is not None:
            if not self._client.done():  # it still connects, longer than the call that waited for it might take
                self._task.cancel()
            await asyncio.wait([self._task])

    async def _list(self, name: str) -> list[dict[str, Any]]:
        client = await self._connected()
        tools, cursor = [], None
        while True:
            page = await client.list_tools(cursor=cursor)
            for tool in page.tools:
                about = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
                tools.append({"type": "function", "function": about})
            if (cursor := page.next_cursor) is None:
                return tools

    async def _call(self, name: str, tool: str, arguments: dict[str, Any]) -> str:
        result = await (await self._connected()).call_tool(tool, arguments)
        texts = [getattr(part, "text", f"({part.type} is left out)") for part in result.content]
        if not texts and result.structured_content is not None:
            texts = [json.dumps(result.structured_content, sort_keys=True)]
        if result.is_error:
            raise McpError("\n".join(texts))
        return "\n".join(texts)

    async def _connected(self) -> Any:
        if self._client is None:
            self._client = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._serve(self._client))
        return await asyncio.shield(self._client)

    async def _serve(self, ready: asyncio.Future[Any]) -> None:
        """Hold the connection; in a task of its own, since it must be opened and closed in the same one."""
        from mcp import Client, StdioServerParameters, stdio_client

        program = isinstance(self._server, StdioServerParameters)  # writes to standard error, by default that of import
        server = stdio_client(self._server, sys.stderr) if program else self._server
        try:
            async with Client(server) as client:
                ready.set_result(client)
                await self._done.wait()
        except Exception as error:  # noqa: BLE001 - raised by the calls that wait for it
            while isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            if not ready.done():
                command = getattr(self._server, "command", self.name)  # without its arguments, which may be secret
                why = f"MCP server '{command}' cannot be reached: {type(error).__name__}: {error}"
                ready.set_exception(ConnectionError(why))


mcp_server = functools.update_wrapper(functools.partial(McpServer), McpServer)
"""An `McpServer`. No class: `team.mcp(...)` would make it of the team alone."""
