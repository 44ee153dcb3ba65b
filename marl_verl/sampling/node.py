"""A node of a sampled tree: one candidate for an act, the state that it leads to, and what that is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from marl_verl.episode import Act, Action, Episode, Journal, ReplayMismatch, Run, Turn
from marl_verl.episode.turn import changed
from marl_verl.sampling.attempt import ask, scored
from marl_verl.sampling.base import Rollouts, drive

Unfinished = Literal["proposal", "latest", "play-on", "zero"]
"""What a state before the workflow's end is worth:

proposal    the score of what the workflow proposed since the state before (`team.propose`); where it proposed nothing,
            of the end that one continuation reaches: an older proposal would give all candidates the same
latest      as "proposal", and an older proposal will do: for agents that have rewards of their own
play-on     the score of the end that one continuation reaches
zero        nothing
"""

SESSION = 0  # a tree is one session of its task


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
    journal = state.journal.extended(act, action)
    async with rollouts.start(session, journal) as run:
        acts = await run.stand()
        check_restarted(rollouts, run, journal)
        answer, tokens, seen = await _outcome(rollouts, run, session, name, unfinished, state.proposals)
        turn = rollouts.turn(act, action, session, agent=agent, index=index, node=name, parent=parent)
        turns = (*state.turns, turn)
        episode = await scored(rollouts, rollouts.state(run, session, turns, answer))
        value = await scored(rollouts, _rewarded(rollouts, turn, episode, seen))
        return State(episode.journal, acts or (), episode, turns, len(run.proposals), value, tokens)


async def _rewarded(rollouts: Rollouts, turn: Turn, episode: Episode, run: Run) -> float:
    await rollouts.reward([turn], episode, run)
    return rollouts.value([turn])[0]


async def _outcome(
    rollouts: Rollouts, run: Run, session: int, name: str, unfinished: Unfinished, before: int
) -> tuple[Any, int, Run]:
    """(the answer that a waiting run is judged by, None for none; tokens sampled to find it; the run that says whether
    an act was of use: in the middle of a joint move only one that was played on can tell). In the state before,
    `before` answers had been proposed."""
    if run.finished:
        return run.answer, 0, run
    if (unfinished == "proposal" and len(run.proposals) > before) or (unfinished == "latest" and run.proposals):
        return run.proposals[-1], 0, run
    if unfinished == "zero":
        return None, 0, run
    tokens = 0

    async def sample(act: Act) -> Action:
        nonlocal tokens
        action = await ask(rollouts, act, session, f"{name} played on")
        tokens += action.length
        return action

    async with rollouts.start(session, run.journal) as played:
        await drive(played, sample)
        return played.answer, tokens, played


def check_restarted(rollouts: Rollouts, run: Run, journal: Journal) -> None:
    """ReplayMismatch unless a run that stands has come by every act of the journal that it was started from.

    A workflow that does something else on replay would ask for the same acts again, and for ever.
    """
    reached = {act.key for act, _ in run.turns}
    standing = {act.key: act for act in run.waiting}
    for record in journal.acts():
        if record.act.key not in reached:
            now = standing.get(record.act.key)
            how = "is not reached any more" if now is None else f"is shown something else: {changed(record.act, now)}"
            raise ReplayMismatch(f"{rollouts.label}: restarted from its journal, {record.act} {how}")


def leaf_episode(state: State, others: Sequence[Turn] = ()) -> Episode:
    """The episode of the path to a state, with the turns that were not gone on with."""
    assert state.episode is not None
    state.episode.others = list(others)
    return state.episode
