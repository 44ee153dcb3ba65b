"""What a sampler is: it turns one task into episodes, through runs that it starts, drives and may restart anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from marl_verl.episode import Act, Action, Episode, Journal, Limits, Reason, Run, Turn
from marl_verl.episode.row import JOIN
from marl_verl.errors import MarlError
from marl_verl.options import Options

Candidate = int | str
"""Tells several actions for one act apart: it enters the request's seed. A name does not depend on who came first."""


class SamplingContext(Protocol):
    """What the rollout worker hands a sampler for one task: how many attempts are wanted, and the means to get them.

    An independent sampler needs `start`, `act` and `finish` only. One that branches makes its own turns (`turn`),
    scores what a run has come to (`state`), rewards turns for it (`reward`), and compares them (`value`). A replay of
    an episode that is no row needs only its `score`.
    """

    sessions: int  # attempts at the task: each sampler's docstring says what that is
    limits: Limits  # of one episode. Runs keep to acts, tokens and calls, `act` to its own; `attempt` to the rest
    agents: tuple[str, ...]  # in the order of the config
    label: str  # workflow and task, to begin an error with

    def start(self, session: int, journal: Journal | None = None) -> Run:
        """A new run of the workflow on the task, from the start or a journal. The sampler closes what it starts."""

    async def act(self, act: Act, session: int, candidate: Candidate = 0, agent: str | None = None) -> Action:
        """Ask the agent's policy. The same (agent, slot, session, candidate) has the same request seed. `agent` takes
        the act where that is not `act.agent`: with its own policy and instructions."""

    async def finish(self, run: Run, session: int) -> Episode:
        """Score a finished run, reward its turns, and make it an episode."""

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
        """The turn that an act and its action make, with the policy behind it; see `Turn.of`."""

    async def state(self, run: Run, session: int, turns: Sequence[Turn], answer: Any) -> Episode:
        """What a run has come to, as an episode of these turns, with `answer` scored (None scores 0)."""

    async def score(self, answer: Any) -> float:
        """The task's score of an answer."""

    async def reward(self, turns: Iterable[Turn], episode: Episode, run: Run) -> None:
        """Fill in the reward components of some turns of a tree, with the state's score as component "team", and
        whether the workflow could not use them."""

    def value(self, turns: Sequence[Turn]) -> list[float]:
        """The reward of each turn, mixed as the algorithm does."""

    async def public_score(self, answer: Any) -> float:
        """The part of an answer's quality that the team may know: `TaskSet.public_score`."""


@dataclass(frozen=True)
class Failure:
    """An attempt without an episode.

    Attributes:
        reason: its class, for counting.
        detail: what happened, in a sentence that names workflow, task and effect.
        trace: the traceback, for the log.
    """

    session: int
    reason: Reason
    detail: str
    trace: str = ""


@dataclass
class Sample:
    """What sampling one task gave.

    Attributes:
        episodes: in session order; in a tree, the paths to its leaves, which share turns.
        failures: attempts that came to nothing.
        dropped: attempts that came to something and are no rows, for the sake of those that failed.
        extra_tokens: what for -> tokens sampled that are no row: playing a state on, or counterfactuals.
    """

    episodes: list[Episode] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    extra_tokens: dict[str, int] = field(default_factory=dict)
    dropped: int = 0

    @property
    def turns(self) -> list[Turn]:
        """Every sampled turn once, by session and index: the rows. MarlError if two turns have one key."""
        found: dict[tuple[int, int], Turn] = {}
        for turn in (turn for each in self.episodes for turn in (*each.turns, *each.off_path_turns)):
            if found.setdefault((turn.session, turn.index), turn) is not turn:
                key = f"{turn.uid}_{turn.session}_{turn.index}"
                raise MarlError(f"the sampler gave two turns, of {turn.agent} and another, the key '{key}'")
        return [turn for _, turn in sorted(found.items())]

    @property
    def attempts(self) -> int:
        """What failures are a share of: sessions, and in a tree its nodes."""
        turns = self.turns
        nodes = {name for turn in turns if turn.node is not None for name in turn.node.split(JOIN)}
        return len(self.failures) + self.dropped + max(len(nodes), len({turn.session for turn in turns}))

    def add_tokens(self, what: str, tokens: int) -> None:
        """Count tokens that are no row."""
        self.extra_tokens[what] = self.extra_tokens.get(what, 0) + tokens


class Sampler(Options):
    """A way to sample a team on any workflow. Annotated attributes are its options in config.

    Attributes:
        branches: whether turns have siblings: only then is there a tree for returns, groups and credits to look at.
        incremental: in a tree, whether component `team` is what a turn adds to its path, which returns have to sum;
            otherwise it is the score of the state that the turn leads to.
    """

    branches: ClassVar[bool] = False
    incremental: ClassVar[bool] = False

    async def sample(self, context: SamplingContext) -> Sample:
        """The episodes of one task. A failing attempt becomes a `Failure`; cancellation propagates."""
        raise NotImplementedError(f"{type(self).__name__} has no `async def sample(self, context)`")

    def check(self, agents: Sequence[str]) -> None:
        """MarlError where an option does not fit the team."""

    @property
    def crossed(self) -> bool:
        """Whether a row can be at several nodes."""
        return False

    @property
    def public(self) -> bool:
        """Whether it needs the task set's `public_score`."""
        return False


async def drive(run: Run, sample: Callable[[Act], Awaitable[Action]]) -> None:
    """Take a run to its end, sampling every act as soon as it is reached, concurrent ones concurrently.

    Raises:
        WorkflowError: of the run.
        Exception: the first that `sample` raised; the other acts are then cancelled, and the run stays where it stands.
    """

    async def answer(act: Act) -> None:
        run.resolve(act, await sample(act))

    try:
        async with asyncio.TaskGroup() as group:
            asked: list[asyncio.Task[None]] = []
            while (acts := await run.next()) is not None:
                asked += [group.create_task(answer(act)) for act in acts]
            for task in asked:  # acts that the workflow ended without waiting for
                task.cancel()
    except ExceptionGroup as errors:
        error: Exception = errors
        while isinstance(error, ExceptionGroup):  # the others came of acts sampled at the same time
            error = error.exceptions[0]
        raise error  # noqa: B904  (`from` would replace the cause that it has)
