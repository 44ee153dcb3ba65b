"""Workflows whose agents run by themselves: a command, a container or a service that calls a model over HTTP.

class Terminal(ExternalWorkflow):
    async def run(self, task, endpoints):
        environ = endpoints["coder"].environ
        done = await process("my-agent", "--task", task.prompt, environ=environ, seconds=600)
        return done.output
"""

import asyncio
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from marl_verl.episode.workflow import Team, Workflow
from marl_verl.tasks import Task
from marl_verl_agents.gateway.server import Endpoints, gateway

OUTPUT = 2**20  # bytes of each stream of a process that are kept, the last ones
SHOWN = 500  # of its error output in a message


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
        async with gateway().episode(team.effects, team.agents, self.ignored) as endpoints:
            return await self.run(task, endpoints)


@dataclass(frozen=True)
class Completed:
    """A process that has ended: its exit code, minus signal if one ended it, and the end of its output."""

    code: int
    output: str
    error: str


class ProcessFailed(Exception):
    """A process ended with another exit code than 0; `completed` is what it left."""

    def __init__(self, command: str, completed: Completed) -> None:
        end = completed.error.strip()[-SHOWN:] or completed.output.strip()[-SHOWN:] or "it printed nothing"
        why = f"signal {-completed.code}" if completed.code < 0 else f"exit code {completed.code}"
        super().__init__(f"'{command}' ended with {why}: {end}")
        self.completed = completed


async def process(
    *command: str | os.PathLike[str],
    environ: Mapping[str, str] | None = None,
    input: str = "",
    folder: str | os.PathLike[str] | None = None,
    seconds: float | None = None,
    check: bool = True,
) -> Completed:
    """Run a command to its end. It and its children are killed if the episode ends first.

    Args:
        environ: variables in addition to those of this process; `Endpoint.environ` points clients to an agent.
        input: its standard input.
        folder: its working directory.
        seconds: time limit.
        check: raise ProcessFailed for an exit code other than 0.

    Raises:
        TimeoutError: it took longer than `seconds`.
        ProcessFailed: see `check`.
        OSError: it cannot be started.
    """
    pipe = asyncio.subprocess.PIPE
    started = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, **(environ or {})},
        cwd=folder,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(seconds):
            streams = await started.communicate(input.encode())
    except TimeoutError as late:
        raise TimeoutError(f"'{command[0]}' took longer than {seconds:g} s") from late
    finally:
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        await started.wait()
    output, error = (stream[-OUTPUT:].decode(errors="replace") for stream in streams)
    completed = Completed(started.returncode or 0, output, error)
    if check and completed.code:
        raise ProcessFailed(os.fspath(command[0]), completed)
    return completed
