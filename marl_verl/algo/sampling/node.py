"""A node of a sampled tree: one candidate for an act, the state that it leads to, and the value of that state."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from marl_verl.algo.sampling.context import SamplingContext
from marl_verl.algo.sampling.sampler import ask, drive, gather_all, scored
from marl_verl.episode import Act, Action, Episode, Journal, ReplayMismatch, Run, Turn
from marl_verl.episode.turn import changed

PartialValue = Literal["proposal", "latest", "rollout", "zero"]
"""How a state before the end of the workflow is valued: "latest" by the score of the latest proposal (`team.propose`),
"proposal" by that of one made since the parent state, both without such a proposal as "rollout"; "rollout" by the score
at the end of one continuation; "zero" by 0."""

SESSION = 0  # a tree is a single session of its task


@dataclass
class State:
    """The state of a blocked or finished run, to which the effects of `journal` lead."""

    journal: Journal
    acts: tuple[Act, ...]  # pending ones of explored agents, in the order reached
    explored: frozenset[str]  # see `transition` for the acts of other agents
    pending: bool = False  # whether acts of other agents come next; `settled` samples them
    episode: Episode | None = None  # the path to the state, scored; None at the root before an act
    turns: tuple[Turn, ...] = ()  # of the path
    own: tuple[Turn, ...] = ()  # the last row of the path, and the turns of the transition after it
    proposals: int = 0  # how many answers the workflow has proposed
    value: float = 0.0  # mixed reward of the last turn
    value_tokens: int = 0  # sampled to value the state

    @property
    def turn(self) -> Turn:
        """The last row of the path."""
        return self.own[0]


def others(acts: Collection[Act], explored: Collection[str]) -> list[Act]:
    """The acts of agents that are not explored. Those of a joint move wait for its explored agents."""
    moves = {act.joint for act in acts if act.role in explored} - {None}
    return [act for act in acts if act.role not in explored and act.joint not in moves]


async def transition(
    context: SamplingContext, run: Run, session: int, node: str | None, explored: Collection[str]
) -> list[Turn]:
    """Sample the acts of agents that are not explored, once each, until the run waits for explored ones or has ended.

    Such an agent is a part of the environment: its acts lead from a node to the next state. They have no candidates and
    are no rows. A joint move's are sampled after those of its explored agents, so once for each of their joint actions.
    As all functions here, it raises AttemptFailed or WorkflowError if no action can be sampled, or no state be reached.

    Args:
        node: the node that the transition belongs to; part of the requests' seeds.
    """
    turns: list[Turn] = []
    while acts := others(await run.run_until_blocked() or (), explored):
        actions = await gather_all(ask(context, act, session, node or 0) for act in acts)
        for act, action in zip(acts, actions, strict=True):
            run.resolve(act, action)
            turns.append(context.turn(act, action, session, node=node))
            turns[-1].transition = True
    return turns


def waiting_for(run: Run, explored: Collection[str]) -> tuple[Act, ...]:
    """The pending acts of explored agents."""
    return tuple(act for act in run.waiting if act.role in explored)


async def root(context: SamplingContext, session: int, also: Collection[str] = ()) -> State:
    """The state before any act of an explored agent; `also`: agents that are explored besides those of the context."""
    explored = context.explored | frozenset(also)
    async with context.start(session) as run:
        turns = tuple(await transition(context, run, session, None, explored))
        if run.finished:  # no explored agent acts
            return await reached(context, run, session, explored, turns, run.answer)
        return State(run.journal, waiting_for(run, explored), explored, turns=turns, proposals=len(run.proposals))


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

    Acts of agents that are not explored are sampled too if they decide the value: without a new proposal before them.

    Args:
        name: name of the node; part of the request's seed.
        index: index of its row.
        parent: name of the state's node.
        agent: the agent that acts, if not the one that the workflow called.
    """
    action = await ask(context, act, session, name, agent)
    journal = state.journal.extended(act, action)
    async with context.start(session, journal) as run:
        await run.run_until_blocked()
        check_restarted(context, run, journal)
        turn = context.turn(act, action, session, agent=agent, index=index, node=name, parent=parent)
        known = partial_value in ("proposal", "latest") and len(run.proposals) > state.proposals
        moved = [] if known else await transition(context, run, session, name, state.explored)
        answer, tokens, seen = await _outcome(context, run, session, name, partial_value, state.proposals)
        turns = (*state.turns, turn, *moved)
        grown = await reached(context, run, session, state.explored, turns, answer)
        assert grown.episode is not None
        value = await scored(context, _rewarded(context, turn, grown.episode, seen))
        return replace(grown, own=(turn, *moved), value=value, value_tokens=tokens)


async def settled(context: SamplingContext, state: State, session: int) -> State:
    """The state after the acts of agents that are not explored, if such acts come next; its value stays."""
    if not state.pending:
        return state
    async with context.start(session, state.journal) as run:
        moved = await transition(context, run, session, state.turn.node, state.explored)
        answer = run.answer if run.finished else run.proposals[-1] if run.proposals else None
        after = await reached(context, run, session, state.explored, (*state.turns, *moved), answer)
        return replace(after, own=(*state.own, *moved), value=state.value, value_tokens=state.value_tokens)


async def reached(
    context: SamplingContext, run: Run, session: int, explored: frozenset[str], turns: tuple[Turn, ...], answer: Any
) -> State:
    """The state of a run after these turns, with `answer` scored."""
    episode = await scored(context, context.state(run, session, turns, answer))
    acts, pending = waiting_for(run, explored), bool(others(run.waiting, explored))
    return State(episode.journal, acts, explored, pending, episode, turns, proposals=len(run.proposals))


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
    """Raise ReplayMismatch unless a blocked run has reached every act of the journal that it was started from: a
    workflow that behaves differently on replay would request the same acts again and again."""
    reached = {act.key for act, _ in run.turns}
    waiting = {act.key: act for act in run.waiting}
    for record in journal.acts():
        if record.act.key not in reached:
            act = waiting.get(record.act.key)
            how = "is not reached" if act is None else f"is shown another observation: {changed(record.act, act)}"
            raise ReplayMismatch(f"{context.label}: restarted from its journal, {record.act} {how}")


def leaf_episode(state: State, off_path: Sequence[Turn] = ()) -> Episode:
    """The episode of the path to a state, with the sampled turns that are not on the path."""
    assert state.episode is not None
    state.episode.off_path_turns = list(off_path)
    return state.episode
