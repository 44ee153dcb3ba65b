"""Attempts: an error in one becomes a `Failure` with its reason and does not affect other attempts."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Iterable
from typing import TypeVar

from marl_verl.algo.sampling.base import Candidate, Failure
from marl_verl.algo.sampling.context import SamplingContext
from marl_verl.episode import Act, Action, Reason, WorkflowError
from marl_verl.episode.debugging import Limit
from marl_verl.errors import format_error

T = TypeVar("T")


class AttemptFailed(Exception):
    """An attempt failed; `reason` is the class of the failure, `__cause__` the original error."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


async def attempt(context: SamplingContext, session: int, work: Awaitable[T]) -> T | Failure:
    """Return the result of `work`, or a `Failure` for an error of workflow, policy or scoring, or a timeout.

    `work` must use `ask` for policy requests and `scored` for scoring, which classify errors. Other errors are bugs of
    the sampler and propagate.
    """
    seconds = context.limits.episode_seconds
    limit = Limit(seconds)
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
    """Call `context.act`; its errors are raised as AttemptFailed with the reason "policy-error" or "timeout"."""
    try:
        return await context.act(act, session, candidate, agent)
    except Exception as error:  # only this attempt fails
        raise _failed(context, error, "policy-error", str(act)) from error


async def scored(context: SamplingContext, work: Awaitable[T]) -> T:
    """Await `work`; its errors are raised as AttemptFailed with the reason "score-error" or "timeout"."""
    try:
        return await work
    except Exception as error:  # only this attempt fails
        raise _failed(context, error, "score-error", "scoring") from error


def _failed(context: SamplingContext, error: Exception, reason: Reason, where: str) -> AttemptFailed:
    message = f"{context.label}, {where}: {format_error(error)}"
    return AttemptFailed("timeout" if isinstance(error, TimeoutError) else reason, message)


async def gather_all(work: Iterable[Awaitable[T]]) -> list[T]:
    """Return the results of concurrent work, in order. After all of it has ended, raise the first error in that order,
    which need not be the first in time."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in work]
    try:
        if tasks:
            await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)  # `gather` would return while they still clean up
        raise
    for task in tasks:
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it: only the first is raised
    return [task.result() for task in tasks]
