"""The API for workflow authors: `Workflow`, and the team through which it acts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from marl_verl.episode.conversation import Conversation
from marl_verl.episode.live import uncopied
from marl_verl.episode.turn import Action
from marl_verl.options import Options
from marl_verl.tasks.base import Task

if TYPE_CHECKING:  # imported where used: the openai package takes half a second
    from openai import AsyncOpenAI, OpenAI

    from marl_verl.episode.tools import McpServer
    from marl_verl.episode.transport import TeamTransport

Seen = str | Sequence[Mapping[str, Any]]
"""An observation: a text (one user message) or chat messages."""


class Workflow(Options):
    """How a team works on a task, as an async function. Annotated attributes are its options in config.

    Between its effects (`act`, `call`, `random`) a workflow must be deterministic: sampling, credit and inspection
    replay it from the journal. Keep state in local variables, use `team.call` for tools and other I/O, and
    `team.random` for random numbers. Concurrency is plain asyncio (`gather`, `TaskGroup`).

        class SolverVerifier(Workflow):
            rounds: int = 2

            async def run(self, task, team):
                draft = await team["solver"].act(task.prompt)
                for _ in range(self.rounds):
                    verdict = await team["verifier"].act(f"{task.prompt}\\n{draft.text}")
                    if verdict.text == "yes":
                        break
                    draft = await team["solver"].act(f"{task.prompt}\\n{verdict.text}")
                return draft.text
    """

    replayable: ClassVar[bool] = True
    """Whether a run can be repeated from its journal, as samplers that branch and replay credits need it."""

    async def run(self, task: Task, team: Team) -> Any:
        """Return the team's answer to the task (not None); at least one agent must act."""
        raise NotImplementedError(f"{type(self).__name__} has no `async def run(self, task, team)`")

    def _begin(self, task: Task, team: Team) -> Any:
        """What the engine awaits; `ExternalWorkflow` overrides it."""
        return self.run(task, team)


class TeamEffects(Protocol):
    """The effects of a run that a team uses; `Member` and `Team` document them."""

    async def act(self, agent: str, observation: Seen, slot: str | None = None, **parameters: Any) -> Action: ...
    async def act_jointly(self, observations: Mapping[str, Seen], slot: str | None = None) -> dict[str, Action]: ...
    async def call(self, fn: Callable[..., Any], arguments: Sequence[Any], agent: str | None = None) -> Any: ...
    def as_sampled(self, agent: str, observation: Any, slot: str | None) -> Any: ...
    def lane(self, agent: str, observation: Any, slot: str | None) -> str | None: ...
    async def check_length(self, agent: str, observation: Any, parameters: dict[str, Any]) -> None: ...
    def mark_invalid(self, action: Action, why: str) -> None: ...
    def request_refused(self, key: str | None, why: str) -> None: ...
    def propose(self, answer: Any) -> None: ...
    def stream(self, name: str | None) -> Random: ...
    def unknown_agent(self, agent: str) -> Exception: ...


class Member:
    """One agent of the team of a run."""

    __slots__ = ("_loop", "_run", "name")

    def __init__(self, run: TeamEffects, name: str) -> None:
        self._run = run
        self._loop = asyncio._get_running_loop()
        self.name = name

    def act(self, observation: Seen, slot: str | None = None, **parameters: Any) -> Coroutine[Any, Any, Action]:
        """Request an action of the agent: `action = await team["solver"].act("2 + 2 = ?")`.

        Args:
            observation: what the agent sees; the agent's instructions are prepended when sampling.
            slot: a name, needed if one agent has several concurrent acts. Acts in one slot are sequential, and each
                slot counts its own turns.
            parameters: of the request, in OpenAI's format: `tools`, `tool_choice`, `response_format`, `stop`,
                `max_tokens`, `temperature`, `top_p`. With `tools`, `action.tool_calls` are the calls in the action.
        """
        return self._run.act(self.name, observation, slot, **parameters)

    def conversation(self, system: str | None = None, slot: str | None = None) -> Conversation:
        """A conversation with the agent, which keeps its messages: `await conversation.act("2 + 2 = ?")`.

        Args:
            system: a system message at its start, after the agent's instructions.
            slot: needed if the agent has several conversations at the same time.
        """
        return Conversation(partial(self.act, slot=slot), system)

    def call(self, fn: Callable[..., Any], *args: Any) -> Coroutine[Any, Any, Any]:
        """As `team.call`, attributed to this agent: its tool reward is the share of its calls that did not raise."""
        return self._run.call(fn, args, self.name)

    def tool(self, fn: Callable[..., Any], sync: bool = False) -> Callable[..., Any]:
        """As `team.tool`, attributed to this agent, as in `call`."""
        from marl_verl.episode.tools import recorded_tool

        return recorded_tool(self._run, fn, self.name, self._loop if sync else None)

    def mcp(self, server: Any) -> McpServer:
        """As `team.mcp`, attributed to this agent, as in `call`."""
        from marl_verl.episode.tools import McpServer

        return McpServer(self._run, server, self.name)


class Team:
    """The team of one run, passed to its workflow."""

    __slots__ = ("_loop", "_members", "_requests", "_run")

    def __init__(self, run: TeamEffects, agents: Sequence[str]) -> None:
        self._run = run
        self._loop = asyncio._get_running_loop()
        self._requests: dict[tuple[str, str | None], int] = {}
        self._members = {name: Member(run, name) for name in agents}

    @property
    def agents(self) -> tuple[str, ...]:
        """Names of the agents, in the order of the config."""
        return tuple(self._members)

    def __getitem__(self, agent: str) -> Member:
        member = self._members.get(agent)
        if member is None:
            raise self._run.unknown_agent(agent)
        return member

    def act(self, observations: Mapping[str, Seen], slot: str | None = None) -> Coroutine[Any, Any, dict[str, Action]]:
        """Request a joint move: several agents act concurrently, without seeing each other's actions.

        Args:
            observations: agent -> observation.

        Returns:
            agent -> action.
        """
        return self._run.act_jointly(observations, slot)

    def call(self, fn: Callable[..., Any], *args: Any) -> Coroutine[Any, Any, Any]:
        """Call a function with side effects or I/O (a tool, a search, a code run). A replay uses the recorded result.

        Args:
            fn: must depend only on its arguments and not change state of the workflow, since a replay does not run it.
                It may be async. With a time limit (`marl.rollout.call_seconds`), a synchronous function runs in its
                own thread, and TimeoutError is raised when the limit is reached.
            args: JSON values or dataclasses; a call with other arguments is another call.

        Returns:
            The result after a JSON round trip (a tuple becomes a list), live and on replay.

        Raises:
            Exception: raised by `fn`. It is recorded: a replay raises its class with its `args`, its message, and its
                public attributes that are JSON values. `fn` must turn anything else that the workflow needs, e.g. a
                header of a response, into a result or an attribute.
            WorkflowError: the result is not a JSON value; the workflow cannot catch this.
        """
        return self._run.call(fn, args)

    def tool(self, fn: Callable[..., Any], sync: bool = False) -> Callable[..., Any]:
        """A function with the name, signature and docstring of `fn` whose calls are `call` effects: `fn` may be a
        tool of any framework, and a replay does not repeat it. It is async; `sync`: for code in `in_thread`.

        Raises:
            TypeError: `fn` has parameters that cannot be given by name.
        """
        from marl_verl.episode.tools import recorded_tool

        return recorded_tool(self._run, fn, None, self._loop if sync else None)

    def mcp(self, server: Any) -> McpServer:
        """The tools of an MCP server: `async with team.mcp("http://localhost:8000/mcp") as server:`, then
        `await server.tools()` and `await server.call(name, arguments)`. Both are `call` effects.

        Args:
            server: a URL, a command as a list of words, or what `mcp.Client` takes.
        """
        from marl_verl.episode.tools import McpServer

        return McpServer(self._run, server, None)

    def openai(self, agent: str | None = None, slot: str | None = None, ignored: Sequence[str] = ()) -> AsyncOpenAI:
        """An `AsyncOpenAI` client whose requests are acts of an agent, without a socket: chat completions and
        responses, also streamed. A copy of it is the client itself.

        Args:
            agent: whose acts the requests are, whatever their `model`; without it, `model` is the agent's name.
            slot: of the acts. Without it, tasks that are created together (`asyncio.gather`, a task group) have a slot
                each; other requests of an agent that overlap need clients with different slots.
            ignored: keys of requests that are dropped, such as ("temperature",) for a framework that always sends a
                value which a trained policy cannot have, and would refuse.
        """
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        transport: Any = self.transport(agent, slot, ignored)
        http = uncopied(DefaultAsyncHttpxClient(transport=transport, trust_env=False))
        client = uncopied(AsyncOpenAI(http_client=http, **_client()))
        client._platform = "Unknown"  # else its first request waits for a thread, and concurrent ones have no order
        return client

    def openai_sync(self, agent: str | None = None, slot: str | None = None, ignored: Sequence[str] = ()) -> OpenAI:
        """As `openai`, an `OpenAI` client for synchronous code that runs in `in_thread`."""
        from openai import DefaultHttpxClient, OpenAI

        transport: Any = self.transport(agent, slot, ignored)
        http = uncopied(DefaultHttpxClient(transport=transport, trust_env=False))
        return uncopied(OpenAI(http_client=http, **_client()))

    def transport(
        self, agent: str | None = None, slot: str | None = None, ignored: Sequence[str] = ()
    ) -> TeamTransport:
        """The transport behind `openai`, for frameworks that take an httpx client: `httpx.AsyncClient(transport=...)`,
        with any base URL and key."""
        from marl_verl.episode.transport import TeamTransport

        if agent is not None:
            self[agent]  # raises for an unknown agent
        if isinstance(ignored, str):
            raise TypeError(f"'ignored' must be a list of keys, got {ignored!r}: write ({ignored!r},)")
        if self._loop is None:
            raise RuntimeError("a client needs the event loop of a run")
        return TeamTransport(self._run, self.agents, agent, slot, self._requests, self._loop, tuple(ignored))

    async def in_thread(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Run synchronous code of a framework, in which `openai_sync` clients act. Unlike the function of a `call` it
        is a part of the workflow: a replay runs it again, and it must be deterministic."""
        from marl_verl.episode.calls import in_thread

        return await in_thread(fn, args)

    def invalid(self, action: Action, why: str) -> None:
        """Mark an action that `act` returned as invalid (no number in it, an illegal move). Invalid actions are counted
        per agent, and some algorithms penalise them. `why` is shown with the episode.
        """
        self._run.mark_invalid(action, why)

    def propose(self, answer: Any) -> None:
        """Set the answer that the team would give if the episode ended now. Samplers that branch or search score a
        state by its latest proposal; without one they must roll out to the end.
        """
        self._run.propose(answer)

    @property
    def random(self) -> Random:
        """Random numbers, seeded from the run's seed and the task's id. Concurrent tasks must use `random_for`."""
        return self._run.stream(None)

    def random_for(self, name: str) -> Random:
        """A separate random stream for a concurrent task, seeded by name."""
        return self._run.stream(name)


def _client() -> dict[str, Any]:
    """Arguments of a client: a retry would be another act."""
    from marl_verl.episode.transport import BASE_URL

    return {"base_url": BASE_URL, "api_key": "none", "max_retries": 0}
