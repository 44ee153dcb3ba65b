"""An attempt that may fail: what goes wrong in it becomes a `Failure` with its reason, and does not affect others."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Iterable
from typing import TypeVar

from marl_verl.episode import Act, Action, WorkflowError
from marl_verl.errors import format_error
from marl_verl.sampling.base import Candidate, Failure, Reason, SamplingContext

T = TypeVar("T")


class AttemptFailed(Exception):
    """What ended an attempt, with its class; `__cause__` is the error itself."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


async def attempt(context: SamplingContext, session: int, work: Awaitable[T]) -> T | Failure:
    """The result of `work`, or why there is none: an error of workflow, policy or scoring, or its time is over.

    `work` asks policies by `ask` and scores by `scored`, which tell whose error it is. Errors of other kinds are
    mistakes of the sampler, and propagate.
    """
    seconds = context.limits.episode_seconds
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await work
    except (AttemptFailed, WorkflowError) as error:
        cause = error.__cause__ if isinstance(error, AttemptFailed) else error
        return Failure(session, error.reason, str(error), "".join(traceback.format_exception(cause)))
    except TimeoutError:
        if not limit.expired():
            raise
        return Failure(session, "timeout", f"{context.label}: the episode took longer than {seconds:g} s")


async def ask(
    context: SamplingContext, act: Act, session: int, candidate: Candidate = 0, agent: str | None = None
) -> Action:
    """`context.act`, whose errors are the policy's. Raises Failed."""
    return await _blamed(context.act(act, session, candidate, agent), "policy-error", f"{context.label}, {act}")


async def scored(context: SamplingContext, work: Awaitable[T]) -> T:
    """The result of `work`, whose errors are the scoring's. Raises Failed."""
    return await _blamed(work, "score-error", f"{context.label}, scoring")


async def _blamed(work: Awaitable[T], reason: Reason, where: str) -> T:
    try:
        return await work
    except Exception as error:  # the attempt fails, and says why; the others go on
        raise AttemptFailed(
            "timeout" if isinstance(error, TimeoutError) else reason, f"{where}: {format_error(error)}"
        ) from error


async def gather_all(work: Iterable[Awaitable[T]]) -> list[T]:
    """The results of concurrent work, in order. It returns when all of it has ended, and then raises the first error in
    order, whichever was first in time."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        if tasks:
            await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)  # unlike `gather`, which is gone while they still clean up
        raise
    for task in tasks:
        if not task.cancelled():
            task.exception()  # seen: only the first is raised
    return [task.result() for task in tasks]
