"""A node of a sampled tree: one candidate for an act, the state that it leads to, and what that is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from marl_verl.episode import Act, Action, Episode, Journal, ReplayMismatch, Run, Turn
from marl_verl.episode.turn import changed
from marl_verl.sampling.attempt import ask, scored
from marl_verl.sampling.base import SamplingContext, drive

PartialValue = Literal["proposal", "latest", "rollout", "zero"]
"""What a state before the workflow's end is worth:

proposal    the score of what the workflow proposed since the state before (`team.propose`); where it proposed nothing,
            of the end that one continuation reaches: an older proposal would give all candidates the same
latest      as "proposal", and an older proposal will do: for agents that have rewards of their own
rollout     the score of the end that one continuation reaches
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
        value_tokens: tokens sampled to find what the state is worth.
    """

    journal: Journal
    acts: tuple[Act, ...]
    episode: Episode | None = None
    turns: tuple[Turn, ...] = ()
    proposals: int = 0
    value: float = 0.0
    value_tokens: int = 0

    @property
    def turn(self) -> Turn:
        """The turn that led here."""
        return self.turns[-1]


async def root(context: SamplingContext, session: int) -> State:
    """The state before any act. WorkflowError if the workflow fails, or ends, without one."""
    async with context.start(session) as run:
        acts = await run.run_until_blocked()
        return State(run.journal, acts or (), proposals=len(run.proposals))


async def expand(
    context: SamplingContext,
    state: State,
    act: Act,
    session: int,
    name: str,
    *,
    index: int,
    parent: str | None,
    partial_value: PartialValue,
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
    action = await ask(context, act, session, name, agent)
    journal = state.journal.extended(act, action)
    async with context.start(session, journal) as run:
        acts = await run.run_until_blocked()
        check_restarted(context, run, journal)
        answer, tokens, seen = await _outcome(context, run, session, name, partial_value, state.proposals)
        turn = context.turn(act, action, session, agent=agent, index=index, node=name, parent=parent)
        turns = (*state.turns, turn)
        episode = await scored(context, context.state(run, session, turns, answer))
        value = await scored(context, _rewarded(context, turn, episode, seen))
        return State(episode.journal, acts or (), episode, turns, len(run.proposals), value, tokens)


async def _rewarded(context: SamplingContext, turn: Turn, episode: Episode, run: Run) -> float:
    await context.reward([turn], episode, run)
    return context.value([turn])[0]


async def _outcome(
    context: SamplingContext, run: Run, session: int, name: str, partial_value: PartialValue, before: int
) -> tuple[Any, int, Run]:
    """(the answer that a waiting run is judged by, None for none; tokens sampled to find it; the run that says whether
    an act was of use: in the middle of a joint move only a rollout to the end can tell). In the state before,
    `before` answers had been proposed."""
    if run.finished:
        return run.answer, 0, run
    if (partial_value == "proposal" and len(run.proposals) > before) or (partial_value == "latest" and run.proposals):
        return run.proposals[-1], 0, run
    if partial_value == "zero":
        return None, 0, run
    tokens = 0

    async def sample(act: Act) -> Action:
        nonlocal tokens
        action = await ask(context, act, session, f"{name} played on")  # the name enters the request's seed
        tokens += action.length
        return action

    async with context.start(session, run.journal) as played:
        await drive(played, sample)
        return played.answer, tokens, played


def check_restarted(context: SamplingContext, run: Run, journal: Journal) -> None:
    """ReplayMismatch unless a run that stands has come by every act of the journal that it was started from.

    A workflow that does something else on replay would ask for the same acts again, and for ever.
    """
    reached = {act.key for act, _ in run.turns}
    standing = {act.key: act for act in run.waiting}
    for record in journal.acts():
        if record.act.key not in reached:
            now = standing.get(record.act.key)
            how = "is not reached any more" if now is None else f"is shown something else: {changed(record.act, now)}"
            raise ReplayMismatch(f"{context.label}: restarted from its journal, {record.act} {how}")


def leaf_episode(state: State, off_path: Sequence[Turn] = ()) -> Episode:
    """The episode of the path to a state, with the sampled turns that are not on it."""
    assert state.episode is not None
    state.episode.off_path_turns = list(off_path)
    return state.episode
