"""What agents of other frameworks use in a workflow: clients of OpenAI's API, an httpx transport, tools, MCP."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from marl_verl.episode import Member, Team
from marl_verl_agents.live import uncopied
from marl_verl_agents.team_transport import BASE_URL, TeamTransport
from marl_verl_agents.tools import McpServer, recorded

if TYPE_CHECKING:  # imported where used: the openai package takes half a second
    from openai import AsyncOpenAI, OpenAI

ARGUMENTS: dict[str, Any] = {"base_url": BASE_URL, "api_key": "none", "max_retries": 0}  # a retry would be another act


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
    http = uncopied(DefaultAsyncHttpxClient(transport=through, trust_env=False))
    client = uncopied(AsyncOpenAI(http_client=http, **ARGUMENTS))
    client._platform = "Unknown"  # else its first request waits for a thread, and concurrent ones have no order
    return client


def openai_client_sync(
    team: Team, agent: str | None = None, slot: str | None = None, ignored: Sequence[str] = ()
) -> "OpenAI":
    """As `openai_client`, an `OpenAI` client for synchronous code that runs in `team.in_thread`."""
    from openai import DefaultHttpxClient, OpenAI

    through: Any = transport(team, agent, slot, ignored)
    http = uncopied(DefaultHttpxClient(transport=through, trust_env=False))
    return uncopied(OpenAI(http_client=http, **ARGUMENTS))


def transport(
    team: Team, agent: str | None = None, slot: str | None = None, ignored: Sequence[str] = ()
) -> TeamTransport:
    """The transport behind `openai_client`, for frameworks that take an httpx client:
    `httpx.AsyncClient(transport=transport(team, "solver"))`, with any base URL and key."""
    if agent is not None:
        team[agent]  # raises for an unknown agent
    assert team.loop is not None  # of a run
    return TeamTransport(team.effects, team.agents, agent, slot, team.requests, team.loop, tuple(ignored))


def recorded_tool(team: Team | Member, fn: Callable[..., Any], sync: bool = False) -> Callable[..., Any]:
    """A function with the name, signature and docstring of `fn` whose calls are `call` effects of the team, or of an
    agent (`recorded_tool(team["solver"], fn)`): `fn` may be a tool of any framework, and a replay does not repeat it.
    It is async; `sync`: for code in `team.in_thread`. TypeError: `fn` has parameters that cannot be given by name."""
    return recorded(team.effects, fn, team.name, team.loop if sync else None)


def mcp_server(team: Team | Member, server: Any) -> McpServer:
    """The tools of an MCP server: `async with mcp_server(team, "http://localhost:8000/mcp") as server:`, then
    `await server.tools()` and `await server.call(name, arguments)`. Both are `call` effects of the team or the agent.

    Args:
        server: a URL, a command as a list of words, or what `mcp.Client` takes.
    """
    return McpServer(team.effects, server, team.name)
