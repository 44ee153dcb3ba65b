"""The gateway: URLs on loopback whose requests are acts of one episode, for processes that cannot be replayed.

    http://127.0.0.1:PORT/e/TOKEN/AGENT/v1     of an agent in an episode, for OpenAI's API
    http://127.0.0.1:PORT/e/TOKEN/AGENT        the same, for Anthropic's

A process has one server for all of its episodes, in the event loop of the runs. The token is unguessable, and valid
until the episode ends; a request that comes later, or is then in progress, is answered with status 410.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import hashlib
import json
import secrets
import socket
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from marl_verl.episode.messages import Message, compared
from marl_verl.episode.requests import Request, RequestError
from marl_verl.episode.transport import FINAL, Acts, TeamTransport, refused
from marl_verl.episode.turn import Action
from marl_verl.errors import MarlError, nearest

HOST = "127.0.0.1"
BODY = 64 * 2**20  # maximum bytes of a request
BACKLOG = 4096  # connections that wait to be accepted: all episodes may begin at once


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


class Endpoints(Mapping[str, Endpoint]):
    """agent -> its URLs, for one episode."""

    def __init__(self, urls: Mapping[str, str]) -> None:
        self._endpoints = {agent: Endpoint(url) for agent, url in urls.items()}

    def __getitem__(self, agent: str) -> Endpoint:
        if agent not in self._endpoints:
            raise MarlError(f"the team has no agent '{agent}': {nearest(agent, self._endpoints)}")
        return self._endpoints[agent]

    def __iter__(self) -> Iterator[str]:
        return iter(self._endpoints)

    def __len__(self) -> int:
        return len(self._endpoints)


class Gateway:
    """An ASGI application and its server, for one event loop."""

    def __init__(self) -> None:
        self._agents: dict[str, dict[str, EpisodeTransport]] = {}  # token -> agent -> transport
        self._acts: dict[str, set[asyncio.Task[Any]]] = {}  # token -> requests in progress
        self._started: asyncio.Future[int] | None = None  # the port

    @contextlib.asynccontextmanager
    async def episode(self, run: Acts, agents: tuple[str, ...], ignored: tuple[str, ...]) -> AsyncIterator[Endpoints]:
        """URLs of an episode's agents, valid inside the block."""
        port, token = await self._port(), secrets.token_urlsafe(24)
        self._agents[token] = {agent: EpisodeTransport(run, agents, agent, ignored) for agent in agents}
        self._acts[token] = set()
        try:
            yield Endpoints({agent: f"http://{HOST}:{port}/e/{token}/{agent}" for agent in agents})
        finally:
            del self._agents[token]
            for act in self._acts.pop(token):
                act.cancel()

    async def _port(self) -> int:
        if self._started is None:
            self._started = asyncio.get_running_loop().create_future()
            # not in the context of the run that comes first: the watchdog would take all requests for its steps
            serving = contextvars.Context().run(asyncio.ensure_future, self._serve(self._started))
            serving.add_done_callback(self._ended)
        return await asyncio.shield(self._started)

    async def _serve(self, started: asyncio.Future[int]) -> None:
        try:
            import uvicorn
        except ImportError as error:
            raise MarlError("the gateway needs the package uvicorn: pip install uvicorn") from error

        class Server(uvicorn.Server):
            """A server that leaves signals to the process."""

            @contextlib.contextmanager
            def capture_signals(self) -> Iterator[None]:
                yield

            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets)
                started.set_result(listening.getsockname()[1])

        quiet: dict[str, Any] = {"log_config": None, "access_log": False, "lifespan": "off", "ws": "none"}
        with socket.socket() as listening:
            listening.bind((HOST, 0))
            await Server(uvicorn.Config(self, interface="asgi3", backlog=BACKLOG, **quiet)).serve([listening])

    def _ended(self, serving: asyncio.Task[None]) -> None:
        started, self._started = self._started, None
        if started is None or started.done() or serving.cancelled():
            return
        why = serving.exception() or MarlError("the server of the gateway has ended")
        started.set_exception(why)

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        """Answer one request (ASGI)."""
        if scope["type"] != "http":
            return
        path, body = str(scope["path"]), bytearray()
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if len(body) > BODY:
                return await _reply(send, *refused(path, RequestError("the request is too large", status=413)))
            if not message.get("more_body"):
                return await _reply(send, *await self._answer(str(scope["method"]), path, bytes(body), receive))

    async def _answer(self, method: str, path: str, body: bytes, receive: Any) -> tuple[int, Any]:
        _, _, token, agent, rest = (*path.split("/", 4), "", "", "", "")[:5]
        if token not in self._agents:
            return refused(path, RequestError("the episode of this URL has ended", status=410, code="episode_ended"))
        transport = self._agents[token].get(agent)
        if transport is None:
            what = f"the team has no agent '{agent}': {nearest(agent, self._agents[token])}"
            return refused(path, RequestError(what, status=404, code="not_found"))
        if (unsent := transport.unsent.pop((rest, body), None)) is not None:
            return unsent
        act = asyncio.ensure_future(transport.answer(method, f"/{rest}", body))
        self._acts[token].add(act)
        gone = asyncio.ensure_future(receive())  # the client has closed the connection
        try:
            await asyncio.wait({act, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._acts.get(token, set()).discard(act)
            for task in (act, gone):
                task.cancel()
        if act.done() and not act.cancelled():
            if gone.done() and not gone.cancelled():
                transport.unsent[rest, body] = act.result()
            return act.result()
        return refused(path, RequestError("the episode has ended", status=410, code="episode_ended"))


async def _reply(send: Any, status: int, content: Any) -> None:
    stream = isinstance(content, bytes)
    body = content if stream else json.dumps(content).encode()
    headers = {"content-type": "text/event-stream" if stream else "application/json", "content-length": str(len(body))}
    headers |= FINAL if status != 200 else {}
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})


_gateways: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Gateway] = weakref.WeakKeyDictionary()


def gateway() -> Gateway:
    """The gateway of the running event loop."""
    return _gateways.setdefault(asyncio.get_running_loop(), Gateway())
