"""The sampler interface: a sampler turns one task into episodes by starting, driving and restarting runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from marl_verl.episode import Act, Action, Episode, Journal, Limits, Reason, Run, Turn
from marl_verl.episode.turn import JOIN
from marl_verl.errors import MarlError
from marl_verl.options import Options
from marl_verl.tasks.base import TaskSet

Candidate = int | str
"""Distinguishes several actions for one act; part of the request's seed. A name is independent of arrival order."""
GREEDY = "greedy"
"""A candidate sampled at temperature 0; and the column of rows with the reward of a task's greedy episode."""


class SamplingContext(Protocol):
    """What the rollout worker passes to a sampler for one task.

    An independent sampler needs only `start`, `act` and `finish`. One that branches creates its own turns (`turn`),
    scores intermediate states (`state`), rewards turns (`reward`) and compares them (`value`). A replay for a credit
    needs only `score`.
    """

    limits: Limits  # of one episode. Runs enforce acts, tokens and calls; `act` act_seconds; `attempt` the others
    agents: tuple[str, ...]  # in the order of the config
    explored: frozenset[str]  # agents of which a tree samples alternatives; acts of others are parts of a transition
    label: str  # workflow and task, as a prefix of error messages

    def start(self, session: int, journal: Journal | None = None) -> Run:
        """Create a run of the workflow on the task, from the start or a journal. The sampler must close it."""

    async def act(self, act: Act, session: int, candidate: Candidate = 0, agent: str | None = None) -> Action:
        """Request an action of the agent's policy. The request's seed depends on (agent, slot, session, candidate).
        `agent`: the agent that acts, if not `act.agent`, with its own policy and instructions."""

    async def finish(self, run: Run, session: int) -> Episode:
        """Score a finished run, reward its turns, and return it as an episode."""

    def turn(
        self,
        act: Act,
        action: Action,
        session: int,
        *,
        agent: str | None = None,
        index: int | None = None,
        node: str | None = None,
        parent: str | None = None,
    ) -> Turn:
        """Create the turn of an act and its action, with the agent's policy; see `Turn`."""

    async def state(self, run: Run, session: int, turns: Sequence[Turn], answer: Any) -> Episode:
        """The current state of a run as an episode of these turns, with `answer` scored (None scores 0)."""

    async def score(self, answer: Any) -> float:
        """The task's score of an answer."""

    async def reward(self, turns: Iterable[Turn], episode: Episode, run: Run) -> None:
        """Set the reward components of turns of a tree, with the score of the state as component "team", and their
        `invalid` marks."""

    def outcome(self, turn: Turn, episode: Episode) -> float:
        """The team reward of a turn's agent in an episode."""

    def value(self, turns: Sequence[Turn]) -> list[float]:
        """The reward of each turn, with the algorithm's reward mix."""

    async def public_score(self, answer: Any) -> float:
        """The score of an answer without the solution: `TaskSet.public_score`."""


@dataclass(frozen=True)
class Failure:
    """An attempt without an episode.

    Attributes:
        reason: its class, for counting.
        detail: the error message, which names workflow, task and effect.
        trace: the traceback, for the log.
    """

    session: int
    reason: Reason
    detail: str
    trace: str = ""


@dataclass
class Sample:
    """The result of sampling one task.

    Attributes:
        episodes: in session order; in a tree, the paths to its leaves, which share turns.
        failures: attempts without an episode.
        dropped: successful attempts that were discarded because related attempts failed.
        greedy: an episode at temperature 0 that is stored and not trained on: a baseline.
        extra_tokens: purpose -> sampled tokens that are not in rows: rollouts to the end, counterfactuals.
    """

    episodes: list[Episode] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    extra_tokens: dict[str, int] = field(default_factory=dict)
    dropped: int = 0
    greedy: Episode | None = None

    @property
    def turns(self) -> list[Turn]:
        """Every sampled turn once, by session and index: the rows. MarlError if two turns have the same key."""
        turns: dict[tuple[int, int], Turn] = {}
        for turn in (turn for episode in self.episodes for turn in (*episode.turns, *episode.off_path_turns)):
            if not turn.transition and turns.setdefault((turn.session, turn.index), turn) is not turn:
                raise MarlError(f"the sampler returned two turns (agent '{turn.agent}') with the key '{turn.row}'")
        return [turn for _, turn in sorted(turns.items())]

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
        turns = (turn for episode in self.episodes for turn in (*episode.turns, *episode.off_path_turns))
        moved = {id(turn): turn for turn in turns if turn.transition}
        if moved:
            self.add_tokens("untrained", sum(turn.length for turn in moved.values()))


class Sampler(Options):
    """Base of samplers, which work with any workflow. Annotated attributes are its options in config; one of them
    is the number of attempts at a task, named for what an attempt is (episodes, nodes).

    Attributes:
        branches: whether turns have siblings. Returns, groups and credits on a tree need such a sampler.
        incremental: in a tree, whether component `team` is what a turn adds to its path, so that returns must sum it;
            otherwise it is the score of the state that the turn leads to.
        one_side: why all agents must be of one side, because it compares or adds up rewards of different agents; None
            if sides may compete.
        greedy: whether rows have the column `GREEDY`.
    """

    greedy: ClassVar[bool] = False
    branches: ClassVar[bool] = False
    incremental: ClassVar[bool] = False
    one_side: ClassVar[str | None] = None

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

    Raises:
        WorkflowError: raised by the run.
        Exception: the first exception raised by `sample`; other requests are then cancelled, and the run stays blocked.
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
