"""A node of a sampled tree: one candidate for an act, the state that it leads to, and what that is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from marl_verl.episode import Act, Action, Episode, Journal, Run, Turn
from marl_verl.sampling.attempt import ask, scored
from marl_verl.sampling.base import Candidate, Rollouts, drive

Unfinished = Literal["proposal", "latest", "play-on", "zero"]
"""What a state before the workflow's end is worth:

proposal    the score of what the workflow proposed since the state before (`team.propose`); where it proposed nothing,
            of the end that one continuation reaches: an older proposal would give all candidates the same
latest      as "proposal", and an older proposal will do: for agents that have rewards of their own
play-on     the score of the end that one continuation reaches
zero        nothing
"""


@dataclass
class State:
    """Where a run stands.

    Attributes:
        journal: leads there.
        acts: what it waits for, in the order reached; empty where the workflow has finished.
        episode: the path to it, scored; None at the root.
        turns: the path: one turn for every act of it that was sampled.
        proposals: how many answers the workflow has proposed.
        value: the mixed reward of the last turn.
        played_on: tokens sampled to see what the state is worth.
    """

    journal: Journal
    acts: tuple[Act, ...]
    episode: Episode | None = None
    turns: tuple[Turn, ...] = ()
    proposals: int = 0
    value: float = 0.0
    played_on: int = 0

    @property
    def turn(self) -> Turn:
        """The turn that led here."""
        return self.turns[-1]


async def root(rollouts: Rollouts, session: int) -> State:
    """The state before any act. WorkflowError if the workflow fails, or ends, without one."""
    async with rollouts.start(session) as run:
        acts = await run.stand()
        return State(run.journal, acts or (), proposals=len(run.proposals))


async def grow(
    rollouts: Rollouts,
    state: State,
    act: Act,
    session: int,
    name: str,
    *,
    index: int,
    parent: str | None,
    unfinished: Unfinished,
    agent: str | None = None,
) -> State:
    """Sample a candidate for one of a state's acts, and go on to where the run stands then.

    Args:
        name: of the node; with it the request's seed.
        index: of its row.
        parent: node of the state.
        agent: who takes the act, if not the one that the workflow called.

    Raises:
        Failed, WorkflowError: no action, or nothing that it leads to.
    """
    action = await ask(rollouts, act, session, name, agent)
    async with rollouts.start(session, state.journal.extended(act, action)) as run:
        acts = await run.stand()
        answer, tokens = await outcome(rollouts, run, session, name, unfinished, state.proposals)
        turn = rollouts.turn(act, action, session, agent=agent, index=index, node=name, parent=parent)
        turns = (*state.turns, turn)
        episode = await scored(rollouts, rollouts.state(run, session, turns, answer))
        value = await scored(rollouts, _rewarded(rollouts, turn, episode, run))
        return State(episode.journal, acts or (), episode, turns, len(run.proposals), value, tokens)


async def _rewarded(rollouts: Rollouts, turn: Turn, episode: Episode, run: Run) -> float:
    rollouts.reward([turn], episode, run)
    return rollouts.value([turn])[0]


async def outcome(
    rollouts: Rollouts, run: Run, session: int, candidate: Candidate, unfinished: Unfinished, before: int
) -> tuple[Any, int]:
    """(the answer that a standing run is judged by, None for none; tokens sampled to find it).

    Args:
        before: how many answers had been proposed in the state before.
    """
    if run.finished:
        return run.answer, 0
    new = len(run.proposals) > before
    if (unfinished == "proposal" and new) or (unfinished == "latest" and run.proposals):
        return run.proposals[-1], 0
    if unfinished == "zero":
        return None, 0
    return await play_on(rollouts, run.journal, session, f"{candidate} played on")


async def play_on(rollouts: Rollouts, journal: Journal, session: int, candidate: Candidate) -> tuple[Any, int]:
    """Take a run of its own from a journal to its end: (its answer, tokens sampled on the way).

    Raises:
        Failed, WorkflowError: it did not get there.
    """
    tokens = 0

    async def sample(act: Act) -> Action:
        nonlocal tokens
        action = await ask(rollouts, act, session, candidate)
        tokens += len(action.response_ids)
        return action

    async with rollouts.start(session, journal) as run:
        await drive(run, sample)
        return run.answer, tokens


def leaf_episode(state: State, others: Sequence[Turn] = ()) -> Episode:
    """The episode of the path to a state, with the turns that were not gone on with."""
    assert state.episode is not None
    state.episode.others = list(others)
    return state.episode
