"""Compare a sample with a replay of the workflow from its rows alone; for `check_sampler`.

The journal of a node is that of its parent plus the actions of the rows at the node; a row of a crossed tree is at
several nodes, whose names are joined by "+". Without nodes, the journal of a session is its rows in order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from marl_verl.algo.sampling import Sample, Sampler
from marl_verl.algo.sampling.context import BaseSamplingContext
from marl_verl.episode import Act, Action, ActRecord, Episode, Journal, Run, Turn, WorkflowError
from marl_verl.episode.turn import changed
from marl_verl.testing.given import must

Worth = Callable[[Run, Run], Any]
"""(run at the parent, run at the node) -> the answer by which the node's state is scored, or None."""

Key = tuple[str, str]
"""(agent that the workflow called, slot)."""


def named(turn: Turn) -> str:
    """A description of a row, for errors."""
    return f"row {turn.index} of session {turn.session} ({turn.agent}:{turn.slot}, node {turn.node})"


async def check_replayed(
    sample: Sample, context: BaseSamplingContext, sampler: Sampler, worth: Worth | None = None
) -> None:
    """Raise AssertionError if the sample differs from the replay of its rows; see `check_sampler`."""
    for row in sample.turns:
        if sampler.branches:
            must(row.node is not None, f"{named(row)} has no node, although the sampler has branches = True")
        else:
            must(row.node is row.parent is None, f"{named(row)} has a node, although the sampler has branches = False")
    if sampler.branches:
        moved: dict[int, Turn] = {}
        for episode in sample.episodes:
            moved |= {id(turn): turn for turn in (*episode.turns, *episode.off_path_turns) if turn.transition}
        tree = await _Tree.replayed(sample.turns, [*moved.values()], context, worth, sampler.incremental)
        for episode in sample.episodes:
            tree.check(episode)
        leaves = [tree.leaf(episode) for episode in sample.episodes]
        must(len(set(leaves)) == len(leaves), f"two episodes are the path to one node: {leaves}")
    else:
        await _check_sessions(sample, context)


async def _check_sessions(sample: Sample, context: BaseSamplingContext) -> None:
    """The rows of each session are a complete run of the workflow, with the rewards of its answer."""
    ends: dict[int, Episode] = {}
    for session in sorted({row.session for row in sample.turns}):
        rows = {row.key: row for row in sample.turns if row.session == session}
        end = ends[session] = await _to_the_end(session, list(rows.values()), context)
        for turn in end.turns:
            must(turn.key in rows, f"act {turn.agent}:{turn.slot} of session {session} is not a row")
            row = rows[turn.key]
            must(row.turn == turn.turn, f"{named(row)} says turn {row.turn}, its act is turn {turn.turn}")
            score = f"its episode's score is {turn.team_reward}"
            must(row.team_reward == turn.team_reward, f"{named(row)} has team_reward {row.team_reward}; {score}")
            _check_rewards(row, turn.rewards, turn.invalid)
    for episode in sample.episodes:
        own = [turn.session for turn in episode.turns if turn.session != episode.session]
        must(not own, f"the episode of session {episode.session} has turns of sessions {own}")
        must(episode.finished, f"the episode of session {episode.session} is not finished")
        end = ends[episode.session]
        _check_end(episode, end, end.journal, f"the episode of session {episode.session}")


async def _to_the_end(session: int, rows: list[Turn], context: BaseSamplingContext) -> Episode:
    asked = [Act(*row.key, row.turn, row.index, row.observation, None, row.parameters) for row in rows]
    records = [ActRecord(act, row.action) for act, row in zip(asked, rows, strict=True)]
    journal = Journal(tuple(records), context.seed(session))
    try:
        async with Run(context.task_context.workflow, context.task, context.agents, journal, strict=True) as run:
            acts = await run.run_until_blocked()
            must(not acts, f"session {session} has no row for {', '.join(map(str, acts or ()))}")
            must(len(run.turns) == len(rows), f"session {session} has rows for acts that its workflow does not reach")
            return await context.finish(run, session)
    except WorkflowError as error:
        raise AssertionError(f"the rows of session {session} are not a run of the workflow: {error}") from error


@dataclass
class _Place:
    """A node or the root, replayed from the rows."""

    run: Run
    acts: Mapping[Key, Act]  # pending acts of the run
    rows: list[Turn] = field(default_factory=list)  # rows at the node
    own: list[Turn] = field(default_factory=list)  # copies of them with recomputed rewards
    path: list[Turn] = field(default_factory=list)  # copies of all rows of the path
    episode: Episode | None = None  # the scored state, if known
    repeats: bool = False  # whether the answer was proposed earlier on the path and may have been rewarded there


@dataclass
class _Tree:
    """The nodes of a sample, by session and name; None is the root."""

    context: BaseSamplingContext
    worth: Worth | None
    incremental: bool
    moved: Mapping[tuple[int, str | None], list[Turn]]  # the transitions, by session and node
    places: dict[tuple[int, str | None], _Place] = field(default_factory=dict)

    @classmethod
    async def replayed(
        cls,
        rows: list[Turn],
        moved: Sequence[Turn],
        context: BaseSamplingContext,
        worth: Worth | None,
        incremental: bool,
    ) -> _Tree:
        """The tree of some rows and transitions, with every node checked."""
        of_node: dict[tuple[int, str | None], list[Turn]] = {}
        for turn in moved:
            of_node.setdefault((turn.session, turn.node), []).append(turn)
        tree = cls(context, worth, incremental, of_node)
        nodes: dict[tuple[int, str], list[Turn]] = {}
        for row in rows:
            for name in _names(row):
                nodes.setdefault((row.session, name), []).append(row)
        for session in sorted({row.session for row in rows}):
            async with context.start(session) as run:
                await tree._move(run, session, None)
                tree.places[session, None] = _Place(run, {act.key: act for act in run.waiting})
        for (session, name), own in nodes.items():
            tree.places[session, name] = await tree._place(session, name, own)
        for row in rows:
            tree._check_row(row)
        return tree

    async def _place(self, session: int, name: str, rows: list[Turn]) -> _Place:
        parents = {row.parent for row in rows}
        must(len(parents) == 1, f"the rows of node {name} have several parents: {parents}")
        parent = rows[0].parent
        above = self.places.get((session, parent))
        if above is None:
            raise AssertionError(f"{named(rows[0])} has parent {parent}, which is not an earlier node")
        journal = above.run.journal
        for row in rows:
            act = above.acts.get(row.key)
            if act is None:
                blocked = ", ".join(map(str, above.acts.values())) or "no act: its workflow has ended"
                raise AssertionError(f"{named(row)} is not an act of its parent, node {parent}, which is at {blocked}")
            if act.seen != (row.observation, row.parameters):
                how = changed(replace(act, observation=row.observation, parameters=row.parameters), act)
                raise AssertionError(f"{named(row)} has another observation than its parent's state: {how}")
            must(act.turn == row.turn, f"{named(row)} says turn {row.turn}, its act is turn {act.turn}")
            must(journal.act(*row.key) is None, f"node {name} has two actions for {act}")
            journal = journal.extended(act, row.action)
        return await self._restarted(session, journal, above, rows, name)

    async def _restarted(self, session: int, journal: Journal, above: _Place, rows: list[Turn], name: str) -> _Place:
        try:
            async with self.context.start(session, journal) as run:
                await run.run_until_blocked()
                place = _Place(run, {}, rows)
                place.own = [replace(row, node=name, rewards={}, invalid=None) for row in rows]
                place.path = [*above.path, *place.own]
                same = _actions(run.journal) == _actions(journal)
                must(same, f"the workflow does not reach all acts of node {name}")
                proposed = len(run.proposals) > len(above.run.proposals)
                before = proposed and not run.finished and not self.incremental  # rewarded before its transition
                if before and self.worth is not None:
                    await self._score(place, self.worth(above.run, run), session)
                moved = await self._move(run, session, name)
                place.path += moved
                place.acts = {act.key: act for act in run.waiting}
                if run.finished:
                    await self._score(place, run.answer, session, rewards=not before)
                    new = len(run.proposals) > len(above.run.proposals)
                    place.repeats = self.incremental and not new and run.answer in run.proposals[-1:]
                    place.repeats |= before and self.worth is None
                elif self.worth is not None and not (before and moved):
                    await self._score(place, self.worth(above.run, run), session)
                return place
        except WorkflowError as error:
            raise AssertionError(f"node {name} is not a state of the workflow: {error}") from error

    async def _move(self, run: Run, session: int, name: str | None) -> list[Turn]:
        """Let the run go through the transition after a node; the turns of it."""
        known, turns = {turn.key: turn for turn in self.moved.get((session, name), ())}, []
        while acts := [act for act in await run.run_until_blocked() or () if act.key in known]:
            for act in acts:
                run.resolve(act, known[act.key].action)
                turns.append(known[act.key])
        return turns

    async def _score(self, place: _Place, answer: Any, session: int, rewards: bool = True) -> None:
        place.episode = await self.context.state(place.run, session, place.path, answer)
        if rewards:
            await self.context.reward(place.own, place.episode, place.run)

    def _check_row(self, row: Turn) -> None:
        """The rewards of a row are the sum over its nodes."""
        places = [self.places[row.session, name] for name in _names(row)]
        if any(place.episode is None or place.repeats for place in places):
            return
        own = [next(turn for turn in place.own if turn.key == row.key) for place in places]
        components = dict.fromkeys(component for turn in own for component in turn.rewards)
        rewards = {component: sum(turn.rewards.get(component, 0.0) for turn in own) for component in components}
        why = [turn.invalid for turn in own if turn.invalid is not None]
        _check_rewards(row, rewards, why[0] if len(why) == len(own) else None)

    def leaf(self, episode: Episode) -> tuple[int, str]:
        """The last node of the path of an episode's turns."""
        must(episode.turns, "an episode has no turns")
        at, left = None, [turn for turn in episode.turns if not turn.transition]
        while left:
            group = list(takewhile(lambda turn, above=at: turn.parent == above, left))  # type: ignore[misc]
            must(group, f"{named(left[0])} follows node {at} in an episode, but its parent is {left[0].parent}")
            shared = set.intersection(*(set(_names(turn)) for turn in group))
            message = f"turns of an episode that have parent {at} share the nodes {sorted(shared)}, not one"
            must(len(shared) == 1, message)
            (at,) = shared
            rows = self.places[episode.session, at].rows
            must({id(row) for row in rows} == {id(turn) for turn in group}, f"an episode lacks turns of its node {at}")
            left = left[len(group) :]
        assert at is not None
        return episode.session, at

    def check(self, episode: Episode) -> None:
        """An episode equals the state of the run at its leaf."""
        leaf = self.leaf(episode)
        place = self.places[leaf]
        same = episode.finished == place.run.finished
        must(same, f"the episode to {leaf[1]} has finished={episode.finished}, its run {place.run.finished}")
        _check_end(episode, place.episode or episode, place.run.journal, f"the episode to node {leaf[1]}")


def _names(row: Turn) -> list[str]:
    return str(row.node).split("+")


def _actions(journal: Journal) -> dict[Key, Action]:
    return {record.act.key: record.action for record in journal.acts()}


def _check_end(episode: Episode, end: Episode, journal: Journal, which: str) -> None:
    """Compare the end of an episode with the replayed one."""
    for name in ("answer", "score", "outcomes", "success"):
        expected, found = getattr(episode, name), getattr(end, name)
        must(expected == found, f"{which} has {name} {expected!r:.80}; replayed it is {found!r:.80}")
    must(_actions(episode.journal) == _actions(journal), f"{which} has a journal with other actions than its turns")
    index = [turn.index for turn in episode.turns if not turn.transition]
    must(index == sorted(index), f"{which} has its turns out of order: {index}")


def _check_rewards(row: Turn, rewards: Mapping[str, float], invalid: str | None) -> None:
    """Compare the rewards of a row, component by component."""
    same = row.rewards.keys() == rewards.keys()
    same = same and all(math.isclose(row.rewards[name], rewards[name], abs_tol=1e-9) for name in rewards)
    must(same, f"{named(row)} has rewards {row.rewards}; the state that it leads to has {dict(rewards)}")
    must(row.invalid == invalid, f"{named(row)} has invalid={row.invalid!r}; its workflow sets {invalid!r}")
