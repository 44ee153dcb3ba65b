"""Compare a sample with a replay of the workflow from its rows alone; for `check_sampler`.

The journal of a node is that of its parent plus the actions of the rows at the node; a row of a crossed tree is at
several nodes, whose names are joined by "+". Without a tree, the rows of a session are at one node, below the root.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile

from marl_verl.algo.sampling import Sample, Sampler
from marl_verl.algo.sampling.context import SamplingContext
from marl_verl.episode import Act, Action, Episode, Journal, Run, Turn, WorkflowError
from marl_verl.episode.turn import JOIN, changed
from marl_verl_testing.given import must

Key = tuple[str, str]
"""(agent that the workflow called, slot)."""


def named(turn: Turn) -> str:
    return f"row {turn.index} of session {turn.session} ({turn.agent}:{turn.slot}, node {turn.node})"


async def check_replayed(sample: Sample, context: SamplingContext, sampler: Sampler) -> None:
    """Raise AssertionError if the sample differs from the replay of its rows; see `check_sampler`."""
    for row in sample.turns:
        right = row.node is not None if sampler.branches else row.node is row.parent is None
        must(right, f"{named(row)} has parent {row.parent}, and the sampler has branches = {sampler.branches}")
    tree = _Tree(context, sampler)
    await tree.replay(sample)
    leaves = [tree.check(episode) for episode in sample.episodes]
    must(len(set(leaves)) == len(leaves), f"two episodes are the path to one node: {leaves}")


@dataclass
class _Node:
    """A node or the root, replayed from the rows."""

    run: Run
    acts: Mapping[Key, Act]  # pending acts of the run
    rows: list[Turn] = field(default_factory=list)  # rows at the node
    rewarded: list[Turn] = field(default_factory=list)  # copies of them with recomputed rewards
    path: list[Turn] = field(default_factory=list)  # copies of all rows of the path
    episode: Episode | None = None  # the scored state, if the workflow has ended
    known: bool = False  # whether the rewards are those of the state


@dataclass
class _Tree:
    """The nodes of a sample, by session and name; None is the root."""

    context: SamplingContext
    sampler: Sampler
    nodes: dict[tuple[int, str | None], _Node] = field(default_factory=dict)
    transitions: dict[tuple[int, str | None], dict[Key, Turn]] = field(default_factory=dict)  # after a node

    async def replay(self, sample: Sample) -> None:
        """Replay and check every node, in the order of the rows."""
        rows: dict[tuple[int, str], list[Turn]] = {}
        for turn in (turn for path in sample.episodes for turn in (*path.turns, *path.off_path_turns)):
            if turn.transition:
                self.transitions.setdefault((turn.session, turn.node), {})[turn.key] = turn
        for row in sample.turns:
            for name in _names(row):
                rows.setdefault((row.session, name), []).append(row)
        for session in sorted({row.session for row in sample.turns}):
            async with self.context.start(session) as run:
                await self._move(run, session, None)
                self.nodes[session, None] = _Node(run, {act.key: act for act in run.waiting})
        for (session, name), at_node in rows.items():
            self.nodes[session, name] = await self._node(session, name, at_node)
        for row in sample.turns:
            self._check_row(row)

    async def _node(self, session: int, name: str, rows: list[Turn]) -> _Node:
        parents = {row.parent for row in rows}
        must(len(parents) == 1, f"the rows of node {name} have several parents: {parents}")
        above = self.nodes.get((session, rows[0].parent))
        assert above is not None, f"{named(rows[0])} has parent {rows[0].parent}, which is not an earlier node"
        journal = above.run.journal
        for row in rows:
            act = self._pending(row, above) if self.sampler.branches else row.act
            must(journal.act(*row.key) is None, f"node {name} has two actions for {act}")
            journal = journal.extended(act, row.action)
        label = f"node {name}" if self.sampler.branches else f"session {session}"
        try:
            async with self.context.start(session, journal) as run:
                blocked = ", ".join(map(str, await run.run_until_blocked() or ()))
                must(self.sampler.branches or not blocked, f"{label} has no row for {blocked}")
                must(_actions(run.journal) == _actions(journal), f"the workflow does not reach all acts of {label}")
                return await self._replayed(run, session, above, rows, name)
        except WorkflowError as error:
            raise AssertionError(f"{label} is not a state of the workflow: {error}") from error

    def _pending(self, row: Turn, above: _Node) -> Act:
        """The act of a row, among those that wait at the parent of its node."""
        act = above.acts.get(row.key)
        blocked = ", ".join(map(str, above.acts.values())) or "no act: its workflow has ended"
        assert act is not None, f"{named(row)} is not an act of its parent, node {row.parent}, at {blocked}"
        if act.seen != row.act.seen:
            how = changed(row.act, act)
            raise AssertionError(f"{named(row)} has another observation than its parent's state: {how}")
        return act

    async def _replayed(self, run: Run, session: int, above: _Node, rows: list[Turn], name: str) -> _Node:
        """A node whose run has the acts of its rows. A final state is scored; its rewards are known unless its answer
        was proposed before, and may have been rewarded there."""
        turns = {act.key: act.turn for act, _ in run.turns}
        for row in rows:
            must(row.turn == turns[row.key], f"{named(row)} says turn {row.turn}, its act is turn {turns[row.key]}")
        if not self.sampler.branches:
            episode = await self.context.finish(run, session)
            return _Node(run, {}, rows, episode.turns, episode=episode, known=True)
        incremental = self.sampler.incremental
        copies = [replace(row, node=name, rewards={}, invalid=None) for row in rows]
        node = _Node(run, {}, rows, copies, [*above.path, *copies])
        early = not incremental and not run.finished and len(run.proposals) > len(above.run.proposals)
        node.path += await self._move(run, session, name)
        node.acts = {act.key: act for act in run.waiting}
        if run.finished:
            node.episode = await self.context.state(run, session, node.path, run.answer)
            await self.context.reward(copies, node.episode, run)
            new = len(run.proposals) > len(above.run.proposals)
            node.known = not early and not (incremental and not new and run.answer in run.proposals[-1:])
        return node

    async def _move(self, run: Run, session: int, name: str | None) -> list[Turn]:
        """Let the run go through the transition after a node; the turns of it."""
        turns, moved = self.transitions.get((session, name), {}), []
        while acts := [act for act in await run.run_until_blocked() or () if act.key in turns]:
            for act in acts:
                run.resolve(act, turns[act.key].action)
                moved.append(turns[act.key])
        return moved

    def _check_row(self, row: Turn) -> None:
        nodes = [self.nodes[row.session, name] for name in _names(row)]
        if not all(node.known for node in nodes):
            return
        turns = [next(turn for turn in node.rewarded if turn.key == row.key) for node in nodes]
        score = f"its episode's score is {turns[0].team_reward}"
        must(row.team_reward == turns[0].team_reward, f"{named(row)} has team_reward {row.team_reward}; {score}")
        components = dict.fromkeys(component for turn in turns for component in turn.rewards)
        rewards = {component: sum(turn.rewards.get(component, 0.0) for turn in turns) for component in components}
        same = row.rewards.keys() == rewards.keys()
        same = same and all(math.isclose(row.rewards[name], rewards[name], abs_tol=1e-9) for name in rewards)
        must(same, f"{named(row)} has rewards {row.rewards}; the state that it leads to has {rewards}")
        marks = [turn.invalid for turn in turns if turn.invalid is not None]
        invalid = marks[0] if len(marks) == len(turns) else None
        must(row.invalid == invalid, f"{named(row)} has invalid={row.invalid!r}; its workflow sets {invalid!r}")

    def check(self, episode: Episode) -> tuple[int, str | None]:
        """Check that an episode is the path to a node and has the state of its run; the node."""
        must(episode.turns, "an episode has no turns")
        leaf, left = None, [turn for turn in episode.turns if not turn.transition]
        while left:
            turns = list(takewhile(lambda turn, parent=leaf: turn.parent == parent, left))  # type: ignore[misc]
            must(turns, f"{named(left[0])} follows node {leaf} in an episode, but its parent is {left[0].parent}")
            shared = set.intersection(*(set(_names(turn)) for turn in turns))
            must(len(shared) == 1, f"turns of an episode with parent {leaf} share the nodes {sorted(shared)}, not one")
            (leaf,) = shared
            rows = self.nodes[episode.session, leaf].rows
            complete = {id(row) for row in rows} == {id(turn) for turn in turns}
            must(complete, f"an episode lacks turns of its node {leaf}")
            left = left[len(turns) :]
        node, label = self.nodes[episode.session, leaf], f"the episode to node {leaf}"
        same = episode.finished == node.run.finished
        must(same, f"{label} has finished={episode.finished}, its run {node.run.finished}")
        _check_end(episode, node.episode or episode, node.run.journal, label)
        return episode.session, leaf


def _names(row: Turn) -> list[str]:
    return str(row.node).split(JOIN)


def _actions(journal: Journal) -> dict[Key, Action]:
    return {record.act.key: record.action for record in journal.acts()}


def _check_end(episode: Episode, end: Episode, journal: Journal, label: str) -> None:
    for name in ("answer", "score", "outcomes", "success"):
        value, replayed = getattr(episode, name), getattr(end, name)
        must(value == replayed, f"{label} has {name} {value!r:.80}; replayed it is {replayed!r:.80}")
    must(_actions(episode.journal) == _actions(journal), f"{label} has a journal with other actions than its turns")
    index = [turn.index for turn in episode.turns if not turn.transition]
    must(index == sorted(index), f"{label} has its turns out of order: {index}")
