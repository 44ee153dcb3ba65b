"""A policy server that is simulated, on a clock that jumps: hours of sampling in seconds, and the same every time.

The server has S slots, first come first served. How long a request takes is lognormal, median 1 s, and drawn from the
request alone (task, session, act, candidate): every scheme meets the same latencies.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import selectors
from collections.abc import Coroutine
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, TypeVar

from marl_verl.algo.sampling import Candidate
from marl_verl.episode import Act, Action, Limits, Team, Workflow
from marl_verl.tasks.base import Task
from marl_verl.testing import ScriptedContext, ScriptedPolicy

T = TypeVar("T")
AGENTS = ("planner", "worker", "judge")
TURNS = 4
ACTION = Action("an action of some words", [1] * 16, [2] * 16, [-1.0] * 16, "stop", 0)
POLICY = ScriptedPolicy(dict.fromkeys(AGENTS, ACTION.text))


class Sequence(Workflow):
    """Three agents, one after the other, four times: 12 acts, each of which sees the one before."""

    async def run(self, task: Task, team: Team) -> str:
        text = task.prompt
        for turn in range(TURNS):
            for agent in team.agents:
                text = (await team[agent].act(f"{task.prompt}, turn {turn}: {text}")).text
        return text


class Together(Workflow):
    """Three agents at once, four times: 12 acts in 4 joint moves."""

    async def run(self, task: Task, team: Team) -> str:
        text = task.prompt
        for turn in range(TURNS):
            moves = await team.act(dict.fromkeys(team.agents, f"{task.prompt}, turn {turn}: {text}"))
            text = " ".join(action.text for action in moves.values())
            team.propose(text)
        return text


class _Jumping(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Advances the clock instead of sleeping."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise RuntimeError("all tasks wait, and no request is in flight")
        self.now += max(timeout, 0.0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time: it jumps to the next timer as soon as nothing is left to do."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Virtual seconds."""
        return self._jumping.now


def in_virtual_time(work: Coroutine[Any, Any, T]) -> tuple[T, float]:
    """Run it; its result, and the virtual seconds that it took."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work), runner.get_loop().time()


@dataclass
class Server:
    """S slots; what it has served.

    Attributes:
        sigma: of the logarithm of a latency, whose median is 1 s.
        served: (task, session, seconds) of every request, in order.
    """

    slots: int
    seed: int
    sigma: float = 1.0
    served: list[tuple[str, int, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._free = asyncio.Semaphore(self.slots)  # hands its slots out in the order in which they were asked for

    def latency(self, *request: Any) -> float:
        """Seconds that a request takes, by its identity."""
        digest = hashlib.blake2b(repr((self.seed, *request)).encode(), digest_size=8).digest()
        return self.quantile((int.from_bytes(digest, "big") + 0.5) / 2**64)

    def quantile(self, share: float) -> float:
        """The latency below which this share of all latencies is."""
        return math.exp(self.sigma * NormalDist().inv_cdf(share))

    async def serve(self, task: str, session: int, *request: Any) -> None:
        """One request."""
        seconds = self.latency(task, session, *request)
        self.served.append((task, session, seconds))
        async with self._free:
            await asyncio.sleep(seconds)

    @property
    def total(self) -> float:
        """Seconds of all requests."""
        return sum(seconds for _, _, seconds in self.served)


class SimulatedRollouts(ScriptedContext):
    """Actions from a server; without one at once.

    Args:
        barrier: where all wait for all after each act: the lockstep of samplers that step their episodes
            together.
    """

    def __init__(
        self,
        workflow: Workflow,
        task: str,
        server: Server | None = None,
        barrier: asyncio.Barrier | None = None,
        limits: Limits = Limits(),  # noqa: B008 - frozen
    ) -> None:
        super().__init__(workflow, Task(task, "a question"), POLICY, limits=limits)
        self._server, self._barrier = server, barrier

    async def act(self, act: Act, session: int, candidate: Candidate = 0, agent: str | None = None) -> Action:
        """The one action there is, after its latency."""
        if self._server is not None:
            await self._server.serve(self.task.id, session, *act.key, candidate)
        if self._barrier is not None:
            await self._barrier.wait()
        return ACTION
