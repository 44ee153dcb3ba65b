"""A context that records the requests of a sampler and disturbs them, for `check_sampler`."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from marl_verl.algo.sampling import Candidate
from marl_verl.episode import Act, Action, ReplayMismatch, Run
from marl_verl.testing.given import SwitchedOff
from marl_verl.testing.scripted import ScriptedContext

Request = tuple[int, tuple[str, str], Candidate, str]
"""(session, act's key, candidate, agent that acts): these determine a request's seed."""


class Watched(ScriptedContext):
    """A context that records requests and injects disturbances: another arrival `order`, a request that fails
    (`broken`), or one that is never resolved (number `stuck`)."""

    def __init__(
        self, *args: Any, order: int | None = None, broken: Request | None = None, stuck: int | None = None, **more: Any
    ) -> None:
        super().__init__(*args, **more)
        self.order, self.broken, self.stuck = order, broken, stuck
        self.requests: list[Request] = []
        self.request_of: dict[int, Request] = {}  # id of the returned action -> request
        self.runs: list[Run] = []
        self.is_stuck = asyncio.Event()

    def start(self, *args: Any, **more: Any) -> Run:
        self.runs.append(super().start(*args, **more))
        return self.runs[-1]

    def mismatch(self) -> ReplayMismatch | None:
        """The error of the first run with a ReplayMismatch, which the sampler may have returned as a failure."""
        errors = (run._fatal for run in self.runs)
        return next((error for error in errors if isinstance(error, ReplayMismatch)), None)

    def concurrent(self) -> bool:
        """Whether a run had effects in concurrent tasks."""
        return any(run._concurrent for run in self.runs)

    async def act(self, act: Act, session: int, candidate: Candidate = 0, agent: str | None = None) -> Action:
        request = session, act.key, candidate, agent or act.agent
        self.requests.append(request)
        if self.stuck == len(self.requests) - 1:
            self.is_stuck.set()
            await asyncio.Event().wait()
        for _ in range(0 if self.order is None else Random(repr((self.order, request))).randrange(20)):
            await asyncio.sleep(0)
        if request == self.broken:
            raise SwitchedOff("a request that check_sampler makes fail")
        action = await super().act(act, session, candidate, agent)
        self.request_of[id(action)] = request
        return action
