"""The joint tree: agents that act at once sample K each, and every joint action goes on.

At a joint node the run stands at n acts, none of which sees another: a joint move, concurrent lanes, or one act alone.
Agent i samples a_(i,k) ~ pi_i(. | o_i), k = 0 .. K - 1, and the joint actions are

    aligned:  (a_(1,j), ..., a_(n,j)),  j = 0 .. K - 1
    cross:    {a_(1,k)} x ... x {a_(n,k)},  K^n of them, the last act's k running fastest

Each leads to a child of its own: the run restarted with these actions, and taken to where it stands next.

Reward of a joint action: the score of the answer if the workflow ended with it; otherwise of the latest proposal if the
workflow proposed anew since the node above; otherwise 0. So the rewards of a path add up, an answer counts once, and
nothing is played on: R_j = r_j + gamma * mean over the children's R (`advantage.returns.TreeMean`).

Source: MAGRPO, arXiv 2508.04652, and the authors' code (both joint modes; a branch stops where its node's mean reward
passes a threshold).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from marl_verl.episode import Act, Action, Episode, Journal, Run, Turn
from marl_verl.errors import MarlError
from marl_verl.sampling.attempt import Failed, ask, attempt, scored
from marl_verl.sampling.base import Failure, Rollouts, Sample, Sampler

JOIN = "+"
"""Between the names in the node of a crossed row; as `advantage.tree` takes them apart."""

SESSION = 0
"""A tree is one session."""

Asked = asyncio.Task[Action | Failure]


@dataclass(eq=False)
class Joint:
    """The state that a joint action led to, or the root, and what was sampled there.

    Attributes:
        path: number of each joint action from the root to here; empty at the root.
        choice: which of its act's actions each turn has.
        turns: one for each act of the joint action.
        proposals: how many answers were proposed on the way.
        above: the node that it was sampled at.
        failures: actions that did not come, of those asked for at this node.
        below: what became of each joint action; None where one of its actions did not come.
    """

    path: tuple[int, ...]
    choice: tuple[int, ...]
    journal: Journal
    acts: tuple[Act, ...]
    proposals: int
    turns: list[Turn] = field(default_factory=list)
    episode: Episode | None = None
    above: Joint | None = None
    failures: list[Failure] = field(default_factory=list)
    below: list[Joint | Failure | None] = field(default_factory=list)

    @property
    def name(self) -> str | None:
        """Its node's name."""
        return ".".join(map(str, self.path)) or None

    @property
    def score(self) -> float:
        """The team's reward."""
        assert self.episode is not None
        return self.episode.score

    @property
    def children(self) -> list[Joint]:
        """The joint actions below that came to something."""
        return [each for each in self.below if isinstance(each, Joint)]

    def to_here(self) -> list[Turn]:
        """The turns of the path to here."""
        nodes = [self]
        while nodes[-1].above is not None:
            nodes.append(nodes[-1].above)
        return [turn for node in reversed(nodes) for turn in node.turns]

    def walk(self) -> Iterator[Joint]:
        """The nodes from here on, parents first, siblings by number."""
        left = [self]
        while left:
            node = left.pop()
            yield node
            left += reversed(node.children)


class JointTree(Sampler):
    """One tree a task: `sessions` is K, what each agent samples at a joint node.

    Joint action j at the root is node "j", below node "p" it is "p.j". Aligned, a joint action has one row for each of
    its acts. Crossed, an action is one row however many joint actions hold it: its node is their names, joined by "+",
    its rewards are the sums of theirs, and it is of no use where it was of no use in all of them. A joint action that
    fails is no node, and missing in these names and sums; an action that no other holds is no row. Episodes are the
    paths to the leaves.

    `max_nodes` bounds the joint actions of a tree, and no path waits for another: at depth d, with e = n if crossed,
    else 1,

        K_d = the largest k <= K with W_d * k^e <= max_nodes - S_d, at least 1
        W_0 = 1,  S_0 = 0,  W_(d+1) = W_d * K_d^e,  S_(d+1) = S_d + W_(d+1)

    W is the width of the tree and S its joint actions so far, as a path computes them from its own nodes: exact where
    all nodes of a depth have as many acts. Where nothing is left K_d is 1: a path goes on to its end, unbranched.

    Options:
        joint: which joint actions there are.
        stop_above: where the mean team score over a node's joint actions is above it, they are leaves; None: never.
            With it the joint actions of one node wait for each other.
        max_nodes: see above.
    """

    branches: ClassVar[bool] = True
    joint: Literal["aligned", "cross"] = "aligned"
    stop_above: float | None = None
    max_nodes: int = 64

    def __post_init__(self) -> None:
        if self.max_nodes < 1:
            raise MarlError(f"'max_nodes' must be at least 1, got {self.max_nodes}")

    @property
    def crossed(self) -> bool:
        """With joint "cross"."""
        return self.joint == "cross"

    async def sample(self, rollouts: Rollouts) -> Sample:
        """Grow the tree, all branches at once."""
        root = await attempt(rollouts, SESSION, _root(rollouts))
        if isinstance(root, Failure):
            return Sample(failures=[root] * rollouts.sessions)  # none of the first joint actions could be sampled
        await self._spawn(rollouts, root, Size())
        number_rows(root, self.crossed)
        episodes = [_path(node) for node in root.walk() if node.above is not None and not node.children]
        return Sample(episodes, list(_failures(root)))

    async def _spawn(self, rollouts: Rollouts, node: Joint, size: Size) -> None:
        """Sample all that is below a node."""
        n = len(node.acts)
        if n == 0:
            return
        cross = self.crossed
        k = size.branching(rollouts.sessions, n if cross else 1, self.max_nodes)
        chosen = list(itertools.product(range(k), repeat=n)) if cross else [(j,) * n for j in range(k)]
        size = size.below(len(chosen))
        async with asyncio.TaskGroup() as group:
            asked = [[group.create_task(_action(rollouts, node, act, own)) for own in range(k)] for act in node.acts]
            made = []
            for number, choice in enumerate(chosen):
                actions = [asked[act][own] for act, own in enumerate(choice)]
                made.append(group.create_task(self._child(rollouts, node, number, choice, actions, size)))
        came = [task.result() for each in asked for task in each]
        node.failures = [each for each in came if isinstance(each, Failure)]
        node.below = [task.result() for task in made]
        scores = [child.score for child in node.children]
        if self.stop_above is not None and scores and sum(scores) / len(scores) <= self.stop_above:
            async with asyncio.TaskGroup() as group:
                for child in node.children:
                    group.create_task(self._spawn(rollouts, child, size))

    async def _child(
        self, rollouts: Rollouts, above: Joint, number: int, choice: tuple[int, ...], asked: list[Asked], size: Size
    ) -> Joint | Failure | None:
        """What becomes of a joint action, and of all below it unless its siblings have a say in that."""
        made = await attempt(rollouts, SESSION, _restarted(rollouts, above, number, choice, asked))
        if isinstance(made, Failure):
            await asyncio.wait(asked)  # where the time is over, theirs is too
            if any(isinstance(task.result(), Failure) for task in asked):
                return None  # told there, once for all joint actions that were to have it
        elif self.stop_above is None:
            await self._spawn(rollouts, made, size)
        return made


@dataclass(frozen=True)
class Size:
    """W_d and S_d of a path: the tree's width where it ends, and the joint actions down to there."""

    width: int = 1
    used: int = 0

    def branching(self, most: int, power: int, limit: int) -> int:
        """K_d: the largest k <= `most` with width * k^power <= limit - used, at least 1."""
        return max((k for k in range(2, most + 1) if self.width * k**power <= limit - self.used), default=1)

    def below(self, children: int) -> Size:
        """One level down, where every node has so many children."""
        width = self.width * children
        return Size(width, self.used + width)


async def _root(rollouts: Rollouts) -> Joint:
    async with rollouts.start(SESSION) as run:
        acts = await run.stand()
        return Joint((), (), run.journal, acts or (), len(run.proposals))


async def _action(rollouts: Rollouts, node: Joint, act: Act, number: int) -> Action | Failure:
    name = ".".join(map(str, (*node.path, number)))
    return await attempt(rollouts, SESSION, ask(rollouts, act, SESSION, name))


async def _restarted(
    rollouts: Rollouts, above: Joint, number: int, choice: tuple[int, ...], asked: list[Asked]
) -> Joint:
    """The node that a joint action leads to, with its turns rewarded. Failed, WorkflowError: it leads to nothing."""
    await asyncio.wait(asked)  # not each by itself: giving up would cancel actions that other joint actions hold
    path = (*above.path, number)
    name = ".".join(map(str, path))
    journal, before = above.journal, above.to_here()
    turns: list[Turn] = []
    for act, task in zip(above.acts, asked, strict=True):
        action = task.result()
        if isinstance(action, Failure):
            raise Failed(action.reason, action.detail)
        journal = journal.extended(act, action)
        index = len(before) + len(turns)  # for who rewards the turn: the row's own is known when the tree is complete
        turns.append(rollouts.turn(act, action, SESSION, index=index, node=name, parent=above.name))
    async with rollouts.start(SESSION, journal) as run:
        acts = await run.stand()
        answer = run.answer if run.finished else None
        if not run.finished and len(run.proposals) > above.proposals:
            answer = run.proposals[-1]
        episode = await scored(rollouts, rollouts.state(run, SESSION, [*before, *turns], answer))
        await scored(rollouts, _reward(rollouts, turns, episode, run))
        return Joint(path, choice, run.journal, acts or (), len(run.proposals), turns, episode, above)


async def _reward(rollouts: Rollouts, turns: list[Turn], episode: Episode, run: Run) -> None:
    rollouts.reward(turns, episode, run)


def number_rows(root: Joint, crossed: bool) -> None:
    """Make the turns of the tree its rows, with indices: in the order of their nodes' paths, those of one joint action
    in the order of its acts. Crossed, the rows of one node come together, act by act."""
    index = itertools.count()
    for node in root.walk():
        if crossed:
            for row in _shared(node):
                row.index = next(index)
        else:
            for row in node.turns:
                row.index = next(index)


def _shared(node: Joint) -> list[Turn]:
    """The rows of the acts at a crossed node: each action once, with what its joint actions earned."""
    rows = []
    for act in range(len(node.acts)):
        holders: dict[int, list[Joint]] = {}
        for child in node.children:
            holders.setdefault(child.choice[act], []).append(child)
        for _, held_by in sorted(holders.items()):
            rows.append(_sum([child.turns[act] for child in held_by]))
            for child in held_by:
                child.turns[act] = rows[-1]
    return rows


def _sum(turns: list[Turn]) -> Turn:
    """One action's turns in several joint actions as one row."""
    row = turns[0]
    row.node = JOIN.join(str(turn.node) for turn in turns)
    names = dict.fromkeys(name for turn in turns for name in turn.rewards)
    row.rewards = {name: sum(turn.rewards.get(name, 0.0) for turn in turns) for name in names}
    row.invalid = row.invalid if all(turn.invalid is not None for turn in turns) else None
    return row


def _path(leaf: Joint) -> Episode:
    """The episode of the path to a leaf, made of rows."""
    assert leaf.episode is not None
    leaf.episode.turns = leaf.to_here()
    if leaf.turns[-1].node != leaf.name:  # crossed: the row is at other nodes, too
        leaf.episode.leaf = leaf.name
    return leaf.episode


def _failures(root: Joint) -> Iterator[Failure]:
    """By node, in the order of paths; at a node its actions, then its joint actions."""
    for node in root.walk():
        yield from node.failures
        yield from (each for each in node.below if isinstance(each, Failure))
