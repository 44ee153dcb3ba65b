"""A node of a sampled tree: one candidate for an act, the state that it leads to, and the value of that state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from marl_verl.episode import Act, Action, Episode, Journal, ReplayMismatch, Run, Turn
from marl_verl.episode.turn import changed
from marl_verl.sampling.attempt import ask, scored
from marl_verl.sampling.base import SamplingContext, drive

PartialValue = Literal["proposal", "latest", "rollout", "zero"]
"""How a state before the end of the workflow is valued:

    proposal    score of the latest proposal (`team.propose`) since the parent state; without one, as "rollout", since
                an older proposal would give all candidates the same value
    latest      score of the latest proposal, even an older one; without one, as "rollout". For agents with role rewards
    rollout     score at the end of one continuation
    zero        0
"""

SESSION = 0  # a tree is a single session of its task


@dataclass
class State:
    """The state of a blocked or finished run.

    Attributes:
        journal: the effects that lead to the state.
        acts: pending acts, in the order reached; empty if the workflow has finished.
        episode: the path to the state, scored; None at the root.
        turns: the turns of the path.
        proposals: number of answers that the workflow has proposed.
        value: mixed reward of the last turn.
        value_tokens: tokens sampled to value the state.
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
        """The last turn of the path."""
        return self.turns[-1]


async def root(context: SamplingContext, session: int) -> State:
    """The state before any act. WorkflowError if the workflow fails or ends without an act."""
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
    """Sample a candidate for one of a state's acts, and run the workflow until it is blocked again.

    Args:
        name: name of the node; part of the request's seed.
        index: index of its row.
        parent: name of the state's node.
        agent: the agent that acts, if not the one that the workflow called.

    Raises:
        AttemptFailed, WorkflowError: no action could be sampled, or the next state not be reached or scored.
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
    """(the answer by which a run is scored, or None; tokens sampled to find it; the run whose `invalid` marks count:
    in the middle of a joint move only a rollout to the end sets them). `before`: number of proposals in the parent."""
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
    """Raise ReplayMismatch unless a blocked run has reached every act of the journal that it was started from.

    A workflow that behaves differently on replay would request the same acts again and again.
    """
    reached = {act.key for act, _ in run.turns}
    standing = {act.key: act for act in run.waiting}
    for record in journal.acts():
        if record.act.key not in reached:
            now = standing.get(record.act.key)
            how = "is not reached" if now is None else f"is shown another observation: {changed(record.act, now)}"
            raise ReplayMismatch(f"{context.label}: restarted from its journal, {record.act} {how}")


def leaf_episode(state: State, off_path: Sequence[Turn] = ()) -> Episode:
    """The episode of the path to a state, with the sampled turns that are not on the path."""
    assert state.episode is not None
    state.episode.off_path_turns = list(off_path)
    return state.episode
