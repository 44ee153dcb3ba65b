"""Clients of OpenAI's and Anthropic's APIs in a workflow, without a socket: an httpx transport whose requests are acts.

    POST .../chat/completions, .../responses, .../messages
                              an act of the agent that `model` names, or to which the client is bound
    GET  .../models           the agents

A request from another thread, or another event loop, is made in the loop of the run, and its thread waits. In the
run's own loop a synchronous client cannot wait without blocking every run, so it is refused.
"""

import asyncio
import contextlib
import functools
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from marl_verl.episode import Team
from marl_verl.episode.effects import ContextLengthExceeded
from marl_verl.episode.errors import WorkflowError
from marl_verl.episode.lanes import parallel_slot
from marl_verl.episode.turn import Action
from marl_verl.errors import nearest
from marl_verl.threads import result_in
from marl_verl_agents import anthropic_messages, chat_completions, responses
from marl_verl_agents.chat_completions import Request, RequestError, parse, server_sent
from marl_verl_agents.conversations import as_sampled, continued

if TYPE_CHECKING:  # imported where used: the openai package takes half a second
    import httpx
    from openai import AsyncOpenAI, OpenAI

T = TypeVar("T")
Content = dict[str, Any] | bytes  # a JSON body, or server-sent events

APIS = {"/chat/completions": chat_completions, "/responses": responses, "/messages": anthropic_messages}
# the host is never resolved: no request leaves the process; a retry would be another act
ARGUMENTS: dict[str, Any] = {"base_url": "http://team/v1", "api_key": "none", "max_retries": 0}
FINAL = {"x-should-retry": "false"}  # the openai package does not repeat such a response
IN_LOOP = (
    "a synchronous client would block the event loop, and so the act it waits for: use openai_client(...), or run the "
    "synchronous code by `await team.in_thread(function, ...)`"
)


def openai_client(
    team: Team, agent: str | None = None, slot: str | None = None, ignored: Sequence[str] = ()
) -> "AsyncOpenAI":
    """An `AsyncOpenAI` client whose requests are acts of an agent, without a socket: chat completions and responses,
    also streamed. A copy of it is the client itself.

    Args:
        agent: whose acts the requests are, whatever their `model`; without it, `model` is the agent's name.
        slot: of the acts. Without it, tasks that are created together (`asyncio.gather`, a task group) have a slot
            each; other requests of an agent that overlap need clients with different slots.
        ignored: keys of requests that are dropped, such as ("temperature",) for a framework that always sends a
            value which a trained policy cannot have, and would refuse.
    """
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient

    through: Any = transport(team, agent, slot, ignored)
    http = _uncopied(DefaultAsyncHttpxClient(transport=through, trust_env=False))
    client = _uncopied(AsyncOpenAI(http_client=http, **ARGUMENTS))
    client._platform = "Unknown"  # else its first request waits for a thread, and concurrent ones have no order
    return client


def openai_client_sync(
    team: Team, agent: str | None = None, slot: str | None = None, ignored: Sequence[str] = ()
) -> "OpenAI":
    """As `openai_client`, an `OpenAI` client for synchronous code that runs in `team.in_thread`."""
    from openai import DefaultHttpxClient, OpenAI

    through: Any = transport(team, agent, slot, ignored)
    http = _uncopied(DefaultHttpxClient(transport=through, trust_env=False))
    return _uncopied(OpenAI(http_client=http, **ARGUMENTS))


class TeamTransport(contextlib.nullcontext[None]):
    """The transport behind `openai_client`, with its arguments, for frameworks that take a client of httpx or of
    httpx2, which refuse each other's classes: `httpx.AsyncClient(transport=transport(team, "solver"))`, with any base
    URL and key."""

    def __init__(
        self, team: Team, agent: str | None = None, slot: str | None = None, ignored: Sequence[str] = ()
    ) -> None:
        super().__init__()
        assert team.loop is not None  # of a run
        if agent is not None:
            team[agent]  # raises for an unknown agent
        self._team, self._agent, self._slot, self._ignored = team, agent, slot, ignored
        self._run, self._loop = team.effects, team.loop
        _uncopied(self)

    async def aclose(self) -> None:
        """Nothing is open."""

    def close(self) -> None:
        """Nothing is open."""

    def _lane(self) -> str | None:
        return parallel_slot() if self._slot is None else self._slot

    async def handle_async_request(self, request: "httpx.Request") -> "httpx.Response":
        slot, body = self._lane(), await request.aread()
        work = self.answer(request.method, request.url.path, body, slot)
        if asyncio.get_running_loop() is not self._loop:
            return _response(request, *await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop)))
        return _response(request, *await work)

    def handle_request(self, request: "httpx.Request") -> "httpx.Response":
        if asyncio._get_running_loop() is self._loop:  # an exception would be shown as a lost connection
            return _response(request, 400, RequestError(IN_LOOP).body)
        method, path, body, slot = request.method, request.url.path, request.read(), self._lane()
        return _response(request, *in_loop(self._loop, lambda: self.answer(method, path, body, slot)))

    async def answer(self, method: str, path: str, body: bytes, slot: str | None = None) -> tuple[int, Content]:
        """(status, content) of the response to a request."""
        try:
            return 200, await self._answer(method, path, body, slot)
        except WorkflowError as error:  # kept by the run, which it ends
            return refused(path, RequestError(str(error), status=500, code="workflow_error"))
        except ContextLengthExceeded as error:
            return refused(path, RequestError(str(error), "messages", code="context_length_exceeded"))
        except RequestError as error:
            self._run.refused[error.param or "request"] = str(error)
            return refused(path, error)

    async def _answer(self, method: str, path: str, body: bytes, slot: str | None) -> Content:
        if method == "GET" and path.endswith("/models"):
            listed = [{"id": name, "object": "model", "created": 0, "owned_by": "team"} for name in self._team.agents]
            return {"object": "list", "data": listed}
        api = next((api for end, api in APIS.items() if method == "POST" and path.endswith(end)), None)
        if api is None:
            why = f"{method} {path} is not supported: a team has {', '.join(APIS)} and /models"
            raise RequestError(why, status=404, code="not_found")
        asked = self._read(api, body)
        agent = asked.model if self._agent is None else self._agent
        if self._agent is None and agent not in self._team.agents:
            why = f"the team has no agent '{agent}': {nearest(agent, self._team.agents)}"
            raise RequestError(why, "model", 404, "model_not_found")
        self._run.check_length(agent, asked.messages, asked.parameters)
        number = self._team.requests.get((agent, slot), 0)
        self._team.requests[agent, slot] = number + 1
        id = "-".join([agent, *([slot] if slot else []), str(number)])
        whole: dict[str, Any] = api.response(id, asked, await self._acts(agent, asked, slot))
        return server_sent(api.events(whole, asked), api is not chat_completions) if asked.stream else whole

    def _read(self, api: Any, body: bytes) -> Request:
        try:
            asked: Request = api.read(parse(body, self._ignored))
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            text = str(error)
            raise RequestError(f"wrong value: {text}", text.split("'")[1] if "'" in text else None) from error
        kept = {name: value for name, value in asked.parameters.items() if name not in self._ignored}
        return replace(asked, parameters=kept)

    async def _acts(self, agent: str, asked: Request, slot: str | None) -> list[Action]:
        """The actions of a request, one per choice, each in a slot of its own."""
        if asked.n == 1:
            lane = continued(self._run, agent, asked.messages, slot, slot) if self._slot is None else slot
            return [await self._act(agent, asked, lane)]
        prefix = "" if slot is None else f"{slot}."
        acts = [self._act(agent, asked, f"{prefix}choice{index}") for index in range(asked.n)]
        return list(await asyncio.gather(*acts))

    async def _act(self, agent: str, asked: Request, slot: str | None) -> Action:
        messages = as_sampled(self._run, agent, asked.messages, slot)
        return await self._run.act(agent, messages, slot, **asked.parameters)


def _response(request: "httpx.Request", status: int, content: Content) -> "httpx.Response":
    # of the client's own package: openai 3 uses httpx2
    make: Callable[..., httpx.Response] = sys.modules[type(request).__module__.partition(".")[0]].Response
    if isinstance(content, bytes):
        return make(status, content=content, headers={"content-type": "text/event-stream"})
    return make(status, json=content, headers=FINAL if status != 200 else None)


def refused(path: str, error: RequestError) -> tuple[int, Content]:
    """(status, body) of a refused request, in the format of the API."""
    return error.status, anthropic_messages.error_body(error) if path.endswith("/messages") else error.body


def in_loop(loop: asyncio.AbstractEventLoop, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of a coroutine that runs in `loop`, waited for in another thread. RuntimeError in the loop's own."""
    if asyncio._get_running_loop() is loop:
        raise RuntimeError(IN_LOOP)
    return result_in(loop, work())


transport = functools.update_wrapper(functools.partial(TeamTransport), TeamTransport)
"""A `TeamTransport`. No class: `team.transport(...)` would make it of the team alone."""


def _uncopied(value: T) -> T:
    """The same object, whose deep copies are the object itself: frameworks copy the clients that they get."""
    value.__deepcopy__ = lambda memo: value  # type: ignore[attr-defined]
    return value
