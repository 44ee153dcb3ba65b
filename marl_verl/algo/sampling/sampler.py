"""Samplers make episodes and failures from a task: the interface, one attempt, and samplers of independent episodes."""

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar, cast

import numpy as np

from marl_verl.algo.sampling.context import Candidate, SamplingContext
from marl_verl.episode import Act, Action, Episode, Run, Turn, WorkflowError
from marl_verl.episode.codec import as_line, encode_episode, without_addresses
from marl_verl.episode.errors import Reason
from marl_verl.episode.turn import JOIN
from marl_verl.errors import MarlError, format_error, raised_at, shown, user_error
from marl_verl.options import Count, Options
from marl_verl.tasks import TaskSet
from marl_verl.threads import Limit

T = TypeVar("T")
ColumnFunction = Callable[[Turn, Episode], Mapping[str, float | Sequence[float]]]
"""The numbers of a turn, {column: number}, of a list one per response token; a column may be left out for some turns.
Rows have them as `RowTable.column` and `RowTable.token_column`."""


@dataclass(frozen=True)
class Failure:
    """An attempt without an episode."""

    session: int
    reason: Reason
    detail: str  # the error message, which names workflow, task and effect
    trace: str = ""  # for the log


@dataclass
class Sample:
    """The result of sampling one task.

    Attributes:
        episodes: in session order; in a tree, the paths to its leaves, which share turns.
        extra_tokens: purpose -> sampled tokens that are not in rows: rollouts to the end, counterfactuals.
        dropped: successful attempts that were discarded because related attempts failed.
        greedy: an episode at temperature 0 that is stored and not trained on: a baseline.
    """

    episodes: list[Episode] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    extra_tokens: dict[str, int] = field(default_factory=dict)
    dropped: int = 0
    greedy: Episode | None = None

    @property
    def turns(self) -> list[Turn]:
        """Every sampled turn once, by session and index: the rows."""
        turns = {id(turn): turn for turn in self._turns() if not turn.transition}
        return sorted(turns.values(), key=lambda turn: (turn.session, turn.index))

    @property
    def attempts(self) -> int:
        """The number of attempts, failed ones included: episodes, or nodes of a tree."""
        turns = self.turns
        nodes = {name for turn in turns if turn.node is not None for name in turn.node.split(JOIN)}
        others = len(self.failures) + self.dropped + (self.greedy is not None)
        return others + max(len(nodes), len({turn.session for turn in turns}))

    def add_tokens(self, purpose: str, tokens: int) -> None:
        """Count sampled tokens that are not in rows."""
        self.extra_tokens[purpose] = self.extra_tokens.get(purpose, 0) + tokens

    def count_transitions(self) -> None:
        """Count the tokens of transitions, which are in no row, as "untrained"."""
        if moved := {id(turn): turn.length for turn in self._turns() if turn.transition}:
            self.add_tokens("untrained", sum(moved.values()))

    def _turns(self) -> Iterator[Turn]:
        """The turns of all episodes; those that episodes share are repeated."""
        return (turn for episode in self.episodes for turn in (*episode.turns, *episode.off_path_turns))


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

    def shared(self, context: SamplingContext, turn: Turn, clients: Mapping[str, Any]) -> Mapping[str, Action]:
        """The turn's action for other policies that learn from it, by policy: prompt and response in their own tokens.
        Their advantages are those of `AdvantageResult.shared`. `clients`: of the trained policies."""
        return {}

    def check(self, agents: Sequence[str]) -> None:
        """Raise MarlError if an option does not fit the team."""

    def warning(self, tasks: TaskSet, moves: Sequence[Sequence[str]]) -> str | None:
        """Why an option is doubtful for these tasks and a workflow with these moves of trained agents; else None. Raise
        MarlError for one with which an agent never acts."""
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
        message = f"{context.label}, {where}: {format_error(error)}{raised_at(error)}"
        raise AttemptFailed("timeout" if isinstance(error, TimeoutError) else reason, message) from error


async def gather_all(work: Iterable[Awaitable[T]]) -> list[T]:
    """Return the results of concurrent work, in order. After all of it has ended, raise the first error in that order,
    which need not be the first in time."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return cast(list[T], results)


class Independent(Sampler):
    """n independent episodes: episode_g ~ pi(. | task), g = 0 .. n - 1.

    Each act is sampled as soon as its run reaches it: neither episodes nor concurrent agents wait for each other.
    """

    episodes: Count = 8

    async def sample(self, context: SamplingContext) -> Sample:
        return Sample(*await attempts(context, self.episodes, sample_episode))


async def attempts(
    context: SamplingContext, count: int, work: Callable[[SamplingContext, int], Awaitable[T]]
) -> tuple[list[T], list[Failure]]:
    """Run `work` for sessions 0 to `count` - 1 concurrently and return (results, failures)."""
    results = await gather_all(attempt(context, g, work(context, g)) for g in range(count))
    failures = [result for result in results if isinstance(result, Failure)]
    return [result for result in results if not isinstance(result, Failure)], failures


async def sample_episode(context: SamplingContext, session: int, candidate: Candidate = 0) -> Episode:
    """Drive one run to its end and score it."""
    async with context.start(session) as run:
        await drive(run, lambda act: ask(context, act, session, candidate))
        return await scored(context, context.finish(run, session))


def sample_lines(sample: Sample, uid: str, task: str, tokens: bool, more: Mapping[str, Any] = {}) -> list[str]:
    """The lines of one task, with token ids and log-probabilities if `tokens`: its episodes in the sampler's order
    (a greedy one last), then its failures by session. `more`: values stored with each episode."""
    failures = sorted(sample.failures, key=lambda failure: (failure.session, failure.reason, failure.detail))
    episodes = sample.episodes if sample.greedy is None else [*sample.episodes, sample.greedy]
    lines = [as_line({**encode_episode(episode, tokens), **more}) for episode in episodes]
    for failure in failures:
        detail = without_addresses(failure.detail)
        stored = {"failure": failure.reason, "session": failure.session, "detail": detail, "uid": uid, "task": task}
        lines.append(as_line(stored))
    return lines


def add_columns(functions: Mapping[str, ColumnFunction], sample: Sample) -> None:
    """Set `columns` of every turn of a sample; a turn that several episodes share gets them from the first of these.
    MarlError, with the name of the function, if it raised, or returned no mapping from names to finite numbers."""
    turns: dict[int, tuple[Turn, Episode]] = {}
    for episode in sample.episodes if functions else ():
        for turn in (*episode.turns, *episode.off_path_turns):
            turns.setdefault(id(turn), (turn, episode))
    for turn, episode in turns.values():
        for name, function in functions.items() if not turn.transition else ():
            label = f"column function {name}, for turn {turn.index} of agent '{turn.agent}',"
            with user_error(f"{label} failed", Exception):
                turn.columns |= {column: _numbers(value, turn) for column, value in function(turn, episode).items()}


def _numbers(value: Any, turn: Turn) -> float | list[float]:
    """A number, or one per response token, of Python, NumPy or torch."""
    numbers = np.asarray(value, dtype=np.float64)
    if numbers.shape not in ((), (turn.length,)) or not np.isfinite(numbers).all():
        raise MarlError(f"{shown(value)} is no finite number, nor a list with one per response token")
    return numbers.tolist()
