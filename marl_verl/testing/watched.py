"""Scripted rollouts that watch what a sampler asks for, and can disturb it: for `check_sampler`."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from marl_verl.episode import Act, Action, ReplayMismatch, Run
from marl_verl.sampling import Candidate
from marl_verl.testing.given import SwitchedOff
from marl_verl.testing.scripted import ScriptedRollouts

Request = tuple[int, tuple[str, str], Candidate, str]
"""(session, act's key, candidate, who takes it): what a request's seed is made of."""


class Watched(ScriptedRollouts):
    """Rollouts that know who asked for what, and can disturb.

    Args:
        order: of arrival; None as asked.
        broken: a request that fails.
        stuck: number of a request that is never answered.

    Attributes:
        requests: in order.
        request_of: id of an action -> what it was asked for by.
        runs: that were started.
    """

    def __init__(
        self, *args: Any, order: int | None = None, broken: Request | None = None, stuck: int | None = None, **more: Any
    ) -> None:
        super().__init__(*args, **more)
        self.order, self.broken, self.stuck = order, broken, stuck
        self.requests: list[Request] = []
        self.request_of: dict[int, Request] = {}
        self.runs: list[Run] = []
        self.is_stuck = asyncio.Event()

    def start(self, *args: Any, **more: Any) -> Run:
        run = super().start(*args, **more)
        self.runs.append(run)
        return run

    @property
    def mismatch(self) -> ReplayMismatch | None:
        """Of the first run that did something else when started again: the sampler may have made it a failure."""
        errors = (run._fatal for run in self.runs)
        return next((error for error in errors if isinstance(error, ReplayMismatch)), None)

    @property
    def concurrent(self) -> bool:
        """Whether a run had acts in tasks beside each other."""
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
            raise SwitchedOff("a request that check_sampler lets fail")
        action = await super().act(act, session, candidate, agent)
        self.request_of[id(action)] = request
        return action
