"""Agents that run by themselves, in a process or a container: URLs whose requests are acts of an episode.

    http://127.0.0.1:PORT/e/TOKEN/AGENT/v1     of an agent in an episode, for OpenAI's API
    http://127.0.0.1:PORT/e/TOKEN/AGENT        the same, for Anthropic's

A process has one server for all of its episodes, in the event loop of the runs. The token is unguessable, and valid
until the episode ends; a request that comes later, or is then in progress, is answered with status 410.
"""

import asyncio
import contextlib
import contextvars
import json
import os
import secrets
import signal
import subprocess
import time
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import psutil
from aiohttp import web

from marl_verl.episode.turn import Action
from marl_verl.episode.workflow import Team, Workflow
from marl_verl.errors import nearest
from marl_verl.tasks import Task
from marl_verl_agents.chat_completions import Request, RequestError
from marl_verl_agents.clients import FINAL, Content, TeamTransport, refused
from marl_verl_agents.conversations import as_sampled, continued

__all__ = ["Endpoint", "Endpoints", "ExternalWorkflow", "ProcessFailed", "process"]

HOST = "127.0.0.1"
BACKLOG = 4096  # connections that wait to be accepted: all episodes may begin at once
OUTPUT = 2**20  # bytes of each stream of a process that are kept, the last ones
SHOWN = 500  # of its error output in a message
MARK = "MARL_VERL_PROCESS"  # environment variable of what a process starts, also in a session of its own
TICK, GRACE = 0.05, 1.0  # seconds between two looks at a process; for others to write what it has sent them
SCANS = 20
PROXY = {"NO_PROXY": HOST, "no_proxy": HOST}  # Python prefers the second, other languages the first
ENDED = "the episode of this URL has ended"
NEW = ""  # no slot: a request begins a conversation
Endpoints = dict[str, "Endpoint"]  # agent -> its URLs, for one episode


@dataclass(frozen=True)
class Endpoint:
    """The base URLs of one agent in one episode, for clients of OpenAI's API (chat completions and responses) and of
    Anthropic's, which append /v1/messages."""

    openai: str
    anthropic: str

    @property
    def environ(self) -> dict[str, str]:
        """Environment variables that the official clients of both APIs read; the key is a placeholder."""
        openai = {"OPENAI_BASE_URL": self.openai, "OPENAI_API_KEY": "none"}
        return {**openai, "ANTHROPIC_BASE_URL": self.anthropic, "ANTHROPIC_API_KEY": "none", **PROXY}


class ExternalWorkflow(Workflow):
    """A workflow that starts what it likes; each request to one of its URLs is an act of that agent.

    It cannot be replayed, so it works with samplers that do not branch (`independent`, `best-of`), and without a credit
    that replays episodes. An agent's requests that continue a conversation (their messages begin with those of an
    earlier request and its reply) are turns of one slot; other requests begin a new slot.

    Attributes:
        ignored: parameters of requests that are dropped, such as ("temperature", "top_p") for a program that always
            sends values that a trained policy cannot have, and would refuse.
    """

    replayable: ClassVar[bool] = False
    ignored: ClassVar[tuple[str, ...]] = ()

    async def run(self, task: Task, endpoints: Endpoints) -> Any:  # type: ignore[override]
        """Return the team's answer, a JSON value; at least one agent must act. `endpoints`: agent -> its URLs, which
        end with this call."""
        raise NotImplementedError(f"{type(self).__name__} has no `async def run(self, task, endpoints)`")

    async def _begin(self, task: Task, team: Team) -> Any:
        gateway = _gateways.setdefault(asyncio.get_running_loop(), Gateway())
        async with gateway.episode(team, self.ignored) as endpoints:
            return await self.run(task, endpoints)


class ProcessFailed(subprocess.CalledProcessError):
    """A process ended with another exit code than 0; `stdout` and `stderr` are the end of its output."""

    def __str__(self) -> str:
        shown = self.stderr.strip()[-SHOWN:] or self.stdout.strip()[-SHOWN:] or "It printed nothing."
        return f"{super().__str__()} {shown}"


async def process(
    *command: str | os.PathLike[str],
    environ: Mapping[str, str] | None = None,
    input: str = "",
    folder: str | os.PathLike[str] | None = None,
    seconds: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; `stdout` and `stderr` are the last MiB of its output. At its end, or that of the
    episode, it and all that it has started are killed.

    Args:
        environ: variables in addition to those of this process; `Endpoint.environ` points clients to an agent.
        input: its standard input.
        folder: its working directory.
        seconds: time limit.

    Raises:
        TimeoutError: it took longer than `seconds`.
        ProcessFailed: it ended with another exit code than 0.
        OSError: it cannot be started.
    """
    settings: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), asyncio.subprocess.PIPE)
    mark, ends = secrets.token_hex(8), (bytearray(), bytearray())
    settings["env"] = {**os.environ, **(environ or {}), MARK: mark}
    started: Any = await asyncio.create_subprocess_exec(*command, cwd=folder, start_new_session=True, **settings)
    streams = zip((started.stdout, started.stderr), ends, strict=True)
    reading = [asyncio.create_task(_read(stream, end)) for stream, end in streams]
    try:
        async with asyncio.timeout(seconds):
            started.stdin.write(input.encode())
            started.stdin.close()
            await _ended(started)
        await asyncio.wait(reading, timeout=GRACE)
    except TimeoutError as late:
        raise TimeoutError(f"'{command[0]}' took longer than {seconds:g} s") from late
    finally:
        await asyncio.to_thread(_kill, started.pid, mark)
        await _ended(started)
        await asyncio.wait(reading, timeout=GRACE)
        for task in reading:
            task.cancel()
    output, error = (end.decode(errors="replace") for end in ends)
    if code := started.returncode:
        raise ProcessFailed(code, os.fspath(command[0]), output, error)
    return subprocess.CompletedProcess(command, 0, output, error)


async def _read(stream: asyncio.StreamReader, end: bytearray) -> None:
    """Read a stream to its end, of which `end` keeps the last bytes."""
    while part := await stream.read(OUTPUT):
        end += part
        del end[:-OUTPUT]


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Wait until a process has ended. `Process.wait` would also wait for those that have its streams."""
    while process.returncode is None:
        await asyncio.sleep(TICK)


def _kill(pid: int, mark: str) -> None:
    """Kill a process with its group, its descendants, and all that have the mark in their environment."""
    left: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        left = psutil.Process(pid).children(recursive=True)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    for _ in range(SCANS):  # again for what has been started meanwhile
        left += [process for process in psutil.process_iter() if _marked(process, mark)]
        if not left:
            return
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        left = []
        time.sleep(TICK)


def _marked(process: psutil.Process, mark: str) -> bool:
    with contextlib.suppress(psutil.Error):  # it has ended, or is another user's
        return process.environ().get(MARK) == mark
    return False


class EpisodeTransport(TeamTransport):
    """Answers the requests of one agent of an episode as conversations, each in a slot of its own: the first in the
    agent's unnamed slot, the n-th in "conversation-n". A client that closes its connection gives its request up. If it
    asks the same again, this is the same turn."""

    def __init__(self, team: Team, agent: str, ignored: Sequence[str]) -> None:
        super().__init__(team, agent, ignored=ignored)
        self._conversations = 0
        self._given_up: dict[str, str | None] = {}  # messages of a request -> the slot of its conversation
        self._unsent: dict[tuple[str, bytes], asyncio.Task[Any]] = {}  # answers that no client has taken to its end
        self.acts: set[asyncio.Task[Any]] = set()  # the requests in progress

    async def respond(self, request: web.BaseRequest, path: str) -> web.Response:
        """Answer a request. RequestError if the episode ends before."""
        body = await request.content.read()
        act = self._unsent.pop((path, body), None) or asyncio.create_task(self.answer(request.method, path, body))
        self.acts.add(act)
        sent = False
        try:
            await asyncio.wait({act})
            if act.cancelled():
                raise RequestError(ENDED, status=410, code="episode_ended")
            response = _response(*act.result())
            with contextlib.suppress(ConnectionError):
                await response.prepare(request)
                await response.write_eof()
                sent = True
            return response
        finally:
            if not sent and act.done() and not act.cancelled() and not act.exception():  # the client has gone
                self._unsent[path, body] = act
            act.cancel()
            self.acts.discard(act)

    async def _acts(self, agent: str, asked: Request, slot: str | None) -> list[Action]:
        key = json.dumps(asked.messages)
        slot = self._given_up.pop(key, NEW)
        if slot == NEW:
            slot = continued(self._run, agent, asked.messages, None, NEW)
        if slot == NEW:
            self._conversations += 1
            slot = None if self._conversations == 1 else f"conversation-{self._conversations}"
        try:
            if asked.n == 1:
                return [await self._act(agent, asked, slot)]
            return await super()._acts(agent, asked, slot)
        except BaseException:
            self._given_up[key] = slot
            raise

    async def _act(self, agent: str, asked: Request, slot: str | None) -> Action:
        messages = as_sampled(self._run, agent, asked.messages, slot)
        for act, action in self._run.turns:  # of a request that was given up, one of several choices may be known
            if (*act.lane, *act.seen) == (agent, slot, messages, asked.parameters or None):
                return action
        return await self._run.act(agent, messages, slot, **asked.parameters)


class Gateway:
    """The HTTP server of one event loop, started by its first episode."""

    def __init__(self) -> None:
        self._episodes: dict[str, dict[str, EpisodeTransport]] = {}  # token -> agent -> its transport
        self._port: asyncio.Future[int]
        self._serving: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def episode(self, team: Team, ignored: Sequence[str]) -> AsyncIterator[Endpoints]:
        """URLs of an episode's agents, valid inside the block."""
        if self._serving is None or self._serving.done():
            loop = asyncio.get_running_loop()
            self._port = loop.create_future()
            # not in the context of the run that comes first, whose tasks have places
            self._serving = loop.create_task(self._serve(self._port), context=contextvars.Context())
        port, token = await asyncio.shield(self._port), secrets.token_urlsafe(24)
        agents = self._episodes[token] = {agent: EpisodeTransport(team, agent, ignored) for agent in team.agents}
        try:
            urls = {agent: f"http://{HOST}:{port}/e/{token}/{agent}" for agent in agents}
            yield {agent: Endpoint(f"{url}/v1", url) for agent, url in urls.items()}
        finally:
            del self._episodes[token]
            for act in [act for transport in agents.values() for act in transport.acts]:
                act.cancel()

    async def _serve(self, port: asyncio.Future[int]) -> None:
        """Serve until the event loop ends."""
        server = web.Server(self._respond, handler_cancellation=True, lingering_time=0, access_log=None)
        runner = web.ServerRunner(server, shutdown_timeout=1)
        await runner.setup()
        try:
            await web.TCPSite(runner, HOST, 0, backlog=BACKLOG).start()
            port.set_result(runner.addresses[0][1])
            await asyncio.Event().wait()
        except Exception as error:  # noqa: BLE001 - raised by the episodes that wait for it
            port.set_exception(error)
        finally:
            await runner.cleanup()

    async def _respond(self, request: web.BaseRequest) -> web.Response:
        _, _, token, agent, rest = (*request.path.split("/", 4), "", "", "", "")[:5]
        try:
            if (agents := self._episodes.get(token)) is None:  # before its body is read
                raise RequestError(ENDED, status=410, code="episode_ended")
            if (transport := agents.get(agent)) is None:
                why = f"the team has no agent '{agent}': {nearest(agent, agents)}"
                raise RequestError(why, status=404, code="not_found")
            return await transport.respond(request, f"/{rest}")
        except RequestError as error:
            return _response(*refused(request.path, error))


def _response(status: int, content: Content) -> web.Response:
    if isinstance(content, bytes):
        return web.Response(body=content, content_type="text/event-stream")
    return web.json_response(content, status=status, headers=FINAL if status != 200 else None)


_gateways: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Gateway] = weakref.WeakKeyDictionary()
