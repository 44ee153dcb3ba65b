"""The gateway: URLs on loopback whose requests are acts of one episode, for processes that cannot be replayed.

    http://127.0.0.1:PORT/e/TOKEN/AGENT/v1     of an agent in an episode, for OpenAI's API
    http://127.0.0.1:PORT/e/TOKEN/AGENT        the same, for Anthropic's

A process has one server for all of its episodes, in the event loop of the runs. The token is unguessable, and valid
until the episode ends; a request that comes later, or is then in progress, is answered with status 410.
"""

import asyncio
import contextlib
import contextvars
import json
import secrets
import socket
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from marl_verl.episode.effects import Effects
from marl_verl.errors import MarlError, nearest
from marl_verl_agents.gateway.conversations import EpisodeTransport
from marl_verl_agents.requests import RequestError
from marl_verl_agents.team_transport import FINAL, refused

HOST = "127.0.0.1"
BACKLOG = 4096  # connections that wait to be accepted: all episodes may begin at once


class Endpoint:
    """The URLs of one agent in one episode."""

    def __init__(self, url: str) -> None:
        self._url = url

    @property
    def openai(self) -> str:
        """The base URL for clients of OpenAI's API (chat completions and responses)."""
        return f"{self._url}/v1"

    @property
    def anthropic(self) -> str:
        """The base URL for clients of Anthropic's API, which append /v1/messages."""
        return self._url

    @property
    def environ(self) -> dict[str, str]:
        """Environment variables that the official clients of both APIs read; the key is a placeholder."""
        openai = {"OPENAI_BASE_URL": self.openai, "OPENAI_API_KEY": "none"}
        return {**openai, "ANTHROPIC_BASE_URL": self.anthropic, "ANTHROPIC_API_KEY": "none", "NO_PROXY": HOST}


class Endpoints(dict[str, Endpoint]):
    """agent -> its URLs, for one episode."""

    def __missing__(self, agent: str) -> Endpoint:
        raise MarlError(f"the team has no agent '{agent}': {nearest(agent, self)}")


@dataclass
class _Episode:
    """An episode: agent -> its transport; its acts in progress."""

    agents: dict[str, EpisodeTransport]
    acts: set[asyncio.Task[Any]] = field(default_factory=set)


class Gateway:
    """An ASGI application and its server, for one event loop."""

    def __init__(self) -> None:
        self._episodes: dict[str, _Episode] = {}  # token -> episode
        self._port = 0
        self._serving: asyncio.Future[None] | None = None

    @contextlib.asynccontextmanager
    async def episode(
        self, run: Effects, agents: tuple[str, ...], ignored: tuple[str, ...]
    ) -> AsyncIterator[Endpoints]:
        """URLs of an episode's agents, valid inside the block."""
        port, token = self._started(), secrets.token_urlsafe(24)
        transports = {agent: EpisodeTransport(run, agents, agent, ignored) for agent in agents}
        episode = self._episodes[token] = _Episode(transports)
        try:
            yield Endpoints({agent: Endpoint(f"http://{HOST}:{port}/e/{token}/{agent}") for agent in agents})
        finally:
            del self._episodes[token]
            for act in episode.acts:
                act.cancel()

    def _started(self) -> int:
        """The port of the server, which the first call starts: until it runs, connections wait at the socket."""
        if self._serving is None or self._serving.done():
            import uvicorn

            class Server(uvicorn.Server):
                """A server that leaves signals to the process."""

                @contextlib.contextmanager
                def capture_signals(self) -> Iterator[None]:
                    yield

            listening = socket.create_server((HOST, 0), backlog=BACKLOG)
            self._port = listening.getsockname()[1]
            options: dict[str, Any] = {"log_config": None, "access_log": False, "lifespan": "off", "ws": "none"}
            server = Server(uvicorn.Config(self, interface="asgi3", backlog=BACKLOG, **options))
            # not in the context of the run that comes first, whose tasks have places
            self._serving = contextvars.Context().run(asyncio.ensure_future, server.serve([listening]))
        return self._port

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        """Answer one request (ASGI)."""
        if scope["type"] != "http":
            return
        path = str(scope["path"])
        _, _, token, agent, rest = (*path.split("/", 4), "", "", "", "")[:5]
        episode, body, more = self._episodes.get(token), bytearray(), True
        try:
            if episode is None:  # before its body is read
                raise RequestError("the episode of this URL has ended", status=410, code="episode_ended")
            if (transport := episode.agents.get(agent)) is None:
                why = f"the team has no agent '{agent}': {nearest(agent, episode.agents)}"
                raise RequestError(why, status=404, code="not_found")
            while more:
                message = await receive()
                if message["type"] != "http.request":
                    return  # the client has gone
                body += message["body"]
                more = bool(message.get("more_body"))
            await _reply(
                send, *await self._answer(episode, transport, scope["method"], f"/{rest}", bytes(body), receive)
            )
        except RequestError as error:
            await _reply(send, *refused(path, error), close=True)

    async def _answer(
        self, episode: _Episode, transport: EpisodeTransport, method: str, path: str, body: bytes, receive: Any
    ) -> tuple[int, Any]:
        if (unsent := transport.unsent.pop((path, body), None)) is not None:
            return unsent
        act = asyncio.ensure_future(transport.answer(method, path, body))
        episode.acts.add(act)
        gone = asyncio.ensure_future(receive())  # the client has closed the connection
        try:
            await asyncio.wait({act, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            episode.acts.discard(act)
            for task in (act, gone):
                task.cancel()
        if act.done() and not act.cancelled():
            if gone.done() and not gone.cancelled():
                transport.unsent[path, body] = act.result()
            return act.result()
        return refused(path, RequestError("the episode has ended", status=410, code="episode_ended"))


async def _reply(send: Any, status: int, content: Any, close: bool = False) -> None:
    stream = isinstance(content, bytes)
    body = content if stream else json.dumps(content).encode()
    headers = {"content-type": "text/event-stream" if stream else "application/json", "content-length": str(len(body))}
    headers |= (FINAL if status != 200 else {}) | ({"connection": "close"} if close else {})
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})


_gateways: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Gateway] = weakref.WeakKeyDictionary()


def gateway() -> Gateway:
    """The gateway of the running event loop."""
    return _gateways.setdefault(asyncio.get_running_loop(), Gateway())
