"""The sampler interface: a sampler turns one task into episodes by starting, driving and restarting runs."""

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import ClassVar, TypeVar, cast

from marl_verl.algo.sampling.base import Candidate, Failure, Sample
from marl_verl.algo.sampling.context import SamplingContext
from marl_verl.episode import Act, Action, Run, WorkflowError
from marl_verl.episode.errors import Reason
from marl_verl.errors import format_error
from marl_verl.options import Options
from marl_verl.tasks import TaskSet
from marl_verl.threads import Limit


class Sampler(Options):
    """Base of samplers, which work with any workflow. Annotated attributes are its options in config; one of them
    is the number of attempts at a task, named for what an attempt is (episodes, nodes).
    """

    branches: ClassVar[bool] = False  # turns have siblings, as returns, groups and credits on a tree need
    # in a tree, component `team` is what a turn adds to its path, so that returns must sum it; otherwise it is the
    # score of the state that the turn leads to
    incremental: ClassVar[bool] = False
    one_side: ClassVar[str | None] = None  # as of a `Part`
    greedy: ClassVar[bool] = False  # rows have the column `GREEDY`

    async def sample(self, context: SamplingContext) -> Sample:
        """Sample the episodes of one task. A failed attempt becomes a `Failure`; cancellation propagates."""
        raise NotImplementedError(f"{type(self).__name__} has no `async def sample(self, context)`")

    def check(self, agents: Sequence[str]) -> None:
        """Raise MarlError if an option does not fit the team."""

    def warning(self, tasks: TaskSet, turns: int) -> str | None:
        """Why an option is doubtful for these tasks in a workflow with so many turns of trained agents; else None."""
        return None

    @property
    def crossed(self) -> bool:
        """Whether a row can be at several nodes."""
        return False

    @property
    def public(self) -> bool:
        """Whether the sampler needs the task set's `public_score`."""
        return False


async def drive(run: Run, sample: Callable[[Act], Awaitable[Action]]) -> None:
    """Drive a run to its end, sampling every act as soon as it is reached; concurrent acts are sampled concurrently.

    Raises WorkflowError of the run, or the first exception of `sample`: other requests are then cancelled.
    """

    async def answer(act: Act) -> None:
        run.resolve(act, await sample(act))

    try:
        async with asyncio.TaskGroup() as group:
            asked: list[asyncio.Task[None]] = []
            while (acts := await run.next()) is not None:
                asked += [group.create_task(answer(act)) for act in acts]
            for task in asked:  # acts that the finished workflow did not wait for
                task.cancel()
    except ExceptionGroup as errors:
        error: Exception = errors
        while isinstance(error, ExceptionGroup):  # the other exceptions are from concurrent acts
            error = error.exceptions[0]
        raise error  # noqa: B904  (`from` would replace its cause)


T = TypeVar("T")


class AttemptFailed(Exception):
    """An attempt failed; `reason` is the class of the failure, `__cause__` the original error."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


async def attempt(context: SamplingContext, session: int, work: Awaitable[T]) -> T | Failure:
    """Return the result of `work`, or a `Failure` for an error of workflow, policy or scoring, or a timeout.

    `work` uses `ask` and `scored`, which classify errors. Other errors are bugs of the sampler and propagate.
    """
    seconds = context.limits.episode_seconds
    try:
        async with context.alone, (limit := Limit(seconds)):
            return await work
    except (AttemptFailed, WorkflowError) as error:
        cause = error.__cause__ if isinstance(error, AttemptFailed) else error
        return Failure(session, error.reason, str(error), "".join(traceback.format_exception(cause)))
    except TimeoutError:
        if not limit.expired():
            raise
        return Failure(session, "timeout", f"{context.label}: the episode took longer than {seconds:g} s")
    finally:
        if asyncio.iscoroutine(work):
            work.close()  # where it is cancelled before its turn


async def ask(
    context: SamplingContext, act: Act, session: int, candidate: Candidate = 0, agent: str | None = None
) -> Action:
    """Call `context.act`; its errors are raised as AttemptFailed with the reason "policy-error" or "timeout"."""
    return await _classified(context, context.act(act, session, candidate, agent), "policy-error", str(act))


async def scored(context: SamplingContext, work: Awaitable[T]) -> T:
    """Await `work`; its errors are raised as AttemptFailed with the reason "score-error" or "timeout"."""
    return await _classified(context, work, "score-error", "scoring")


async def _classified(context: SamplingContext, work: Awaitable[T], reason: Reason, where: str) -> T:
    try:
        return await work
    except Exception as error:  # only this attempt fails
        message = f"{context.label}, {where}: {format_error(error)}"
        raise AttemptFailed("timeout" if isinstance(error, TimeoutError) else reason, message) from error


async def gather_all(work: Iterable[Awaitable[T]]) -> list[T]:
    """Return the results of concurrent work, in order. After all of it has ended, raise the first error in that order,
    which need not be the first in time."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return cast(list[T], results)
