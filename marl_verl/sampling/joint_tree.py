"""The joint tree: agents that act at once sample K each, and every joint action goes on.

At a joint node the run stands at n acts, none of which sees another: a joint move, concurrent lanes, or one act alone.
Agent i samples a_(i,k) ~ pi_i(. | o_i), k = 0 .. K - 1, and the joint actions are

    aligned:  (a_(1,j), ..., a_(n,j)),  j = 0 .. K - 1
    cross:    {a_(1,k)} x ... x {a_(n,k)},  K^n of them, the last act's k running fastest

Each leads to a child of its own: the run restarted with these actions, and taken to where it stands next.

Reward of a joint action: the score of the answer if the workflow ended with it, unless that is the latest proposal and
was scored on the way; otherwise of the latest proposal if the workflow proposed anew since the node above; otherwise 0.
So the rewards of a path add up, and nothing is played on: R_j = r_j + gamma * mean over the children's R
(`advantage.returns.TreeMean`).

What fails, a joint action or all that is below it, is taken out when the tree is complete, from the leaves upwards.
Crossed, whole completions are, until a product is left: the sums that completions are compared by have equally many
terms, so that a failure moves no advantage.

    while a joint action of the product came to nothing:
        drop the completion that most of those hold, and the joint actions it is in
        (ties: of those the one that is in the fewest joint actions, of the first act, with the lowest k)

Source: MAGRPO, arXiv 2508.04652, and the authors' code (both joint modes; a branch stops where its node's mean reward
passes a threshold).
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from marl_verl.episode import Act, Action, Episode, Journal, Run, Turn
from marl_verl.episode.row import JOIN
from marl_verl.errors import MarlError
from marl_verl.sampling.attempt import Failed, ask, attempt, scored
from marl_verl.sampling.base import Failure, Rollouts, Sample, Sampler
from marl_verl.sampling.node import check_restarted

SESSION = 0
"""A tree is one session."""

Asked = asyncio.Task[Action | Failure]

Choice = tuple[int, ...]
"""Which of its act's actions each turn of a joint action has."""


@dataclass(eq=False)
class Joint:
    """The state that a joint action led to, or the root, and what was sampled there.

    Attributes:
        path: number of each joint action from the root to here; empty at the root.
        turns: one for each act of the joint action.
        proposals: how many answers were proposed on the way.
        counted: whether the latest of them is the reward of a joint action on the way.
        above: the node that it was sampled at.
        failures: actions that did not come, of those asked for at this node.
        below: what became of each joint action, by number; None where one of its actions did not come, and for what
            `prune` took out. Empty where the path ends.
    """

    path: tuple[int, ...]
    journal: Journal
    acts: tuple[Act, ...]
    proposals: int
    counted: bool = False
    turns: list[Turn] = field(default_factory=list)
    episode: Episode | None = None
    above: Joint | None = None
    failures: list[Failure] = field(default_factory=list)
    below: dict[Choice, Joint | Failure | None] = field(default_factory=dict)

    @property
    def name(self) -> str | None:
        """Its node's name."""
        return ".".join(map(str, self.path)) or None

    @property
    def reward(self) -> float:
        """The team's reward for the joint action."""
        return self.turns[0].rewards["team"]

    @property
    def by_choice(self) -> dict[Choice, Joint]:
        """The joint actions below that came to something."""
        return {choice: each for choice, each in self.below.items() if isinstance(each, Joint)}

    @property
    def children(self) -> list[Joint]:
        """They, by number."""
        return list(self.by_choice.values())

    @property
    def lost(self) -> bool:
        """Whether it was gone on with, and nothing came of that."""
        return bool(self.below) and not self.by_choice

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
    its rewards are the sums of theirs, and it is of no use where it was of no use in all of them. Episodes are the
    paths to the leaves. No node, and no row, is a joint action that fails, or below which all fail, or, crossed, that
    goes with one of these for a product to be left.

    Which `unfinished`: "proposal" where every path has equally many answers scored, such as a draft that is revised in
    a fixed number of rounds, with a proposal after each. "zero" where their number varies, as with a verifier that may
    accept or send back: there every further proposal would add a score, and accepting one would add none.

    `max_nodes` bounds where the tree branches, and no path waits for another: at depth d, with e = n if crossed,
    else 1,

        K_d = the largest k <= K with W_d * k^e <= max_nodes - S_d, at least 1
        W_0 = 1,  S_0 = 0,  W_(d+1) = W_d * K_d^e,  S_(d+1) = S_d + W_(d+1)

    W is the width of the tree and S its joint actions so far, as a path computes them from its own nodes: exact where
    all nodes of a depth have as many acts. Where nothing is left K_d is 1: a path goes on to its end, unbranched.

    Options:
        joint: which joint actions there are.
        unfinished: what is scored before the workflow's end: what it proposes, or nothing.
        stop_above: where the mean team reward over a node's joint actions is above it, they are leaves; None: never.
            With it the joint actions of one node wait for each other.
        max_nodes: joint actions up to which nodes branch. Paths still go to their ends, so that W nodes are added at
            every level below that, and a tree can have more.
    """

    branches: ClassVar[bool] = True
    adds_up: ClassVar[bool] = True
    joint: Literal["aligned", "cross"] = "aligned"
    unfinished: Literal["proposal", "zero"] = "proposal"
    stop_above: float | None = None
    max_nodes: int = 64

    def __post_init__(self) -> None:
        if self.max_nodes < 1:
            raise MarlError(f"'max_nodes' must be at least 1, got {self.max_nodes}")
        if self.unfinished == "zero" and self.stop_above is not None:
            raise MarlError(
                "'stop_above' has no score to stop by where 'unfinished' is 'zero': leave it out, or set 'unfinished' "
                "to 'proposal'"
            )

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
        failures = list(_failures(root))  # each once, those below what is taken out as well
        dropped = prune(root, self.crossed)
        number_rows(root, self.crossed)
        episodes = [_path(node) for node in root.walk() if not node.below]
        return Sample(episodes, failures, dropped=dropped)

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
                made.append(group.create_task(self._child(rollouts, node, number, actions, size)))
        came = [task.result() for each in asked for task in each]
        node.failures = [each for each in came if isinstance(each, Failure)]
        node.below = {choice: task.result() for choice, task in zip(chosen, made, strict=True)}
        rewards = [child.reward for child in node.children]
        if self.stop_above is not None and rewards and sum(rewards) / len(rewards) <= self.stop_above:
            async with asyncio.TaskGroup() as group:
                for child in node.children:
                    group.create_task(self._spawn(rollouts, child, size))

    async def _child(
        self, rollouts: Rollouts, above: Joint, number: int, asked: list[Asked], size: Size
    ) -> Joint | Failure | None:
        """What becomes of a joint action, and of all below it unless its siblings have a say in that."""
        scores_proposals = self.unfinished == "proposal"
        made = await attempt(rollouts, SESSION, _restarted(rollouts, above, number, asked, scores_proposals))
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
        return Joint((), run.journal, acts or (), len(run.proposals))


async def _action(rollouts: Rollouts, node: Joint, act: Act, number: int) -> Action | Failure:
    name = ".".join(map(str, (*node.path, number)))
    return await attempt(rollouts, SESSION, ask(rollouts, act, SESSION, name))


async def _restarted(
    rollouts: Rollouts, above: Joint, number: int, asked: list[Asked], scores_proposals: bool
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
        check_restarted(rollouts, run, journal)
        proposed = scores_proposals and len(run.proposals) > above.proposals
        answer = run.answer if run.finished else run.proposals[-1] if proposed else None
        episode = await scored(rollouts, rollouts.state(run, SESSION, [*before, *turns], answer))
        await scored(rollouts, rollouts.reward(turns, episode, run))
        if run.finished and above.counted and not proposed and await scored(rollouts, _same(run)):
            for turn in turns:
                turn.rewards["team"] = 0.0  # it is the reward of the joint action after which it was proposed
        counted = above.counted or proposed
        return Joint(path, run.journal, acts or (), len(run.proposals), counted, turns, episode, above)


async def _same(run: Run) -> bool:
    """Whether the workflow answered with its latest proposal. MarlError where `==` does not say."""
    answer, proposal = run.answer, run.proposals[-1]
    try:
        return answer is proposal or bool(answer == proposal)
    except Exception as error:  # `==` is the answer's own
        what = f"an answer of type '{type(answer).__name__}' cannot be compared with what was proposed"
        raise MarlError(f"{what}: give it a '==', or return the very object that was proposed") from error


def prune(root: Joint, crossed: bool) -> int:
    """Take out what came to nothing: below every node all remaining paths are whole, and crossed are a product.

    Returns:
        How many joint actions that had come to something went with it.
    """
    before = sum(1 for _ in root.walk())
    for node in reversed(list(root.walk())):
        came = [choice for choice, child in node.by_choice.items() if not child.lost]
        kept = set(product_of(came, node.below) if crossed else came)
        node.below = {choice: each if choice in kept else None for choice, each in node.below.items()}
    return before - sum(1 for _ in root.walk())


def product_of(came: Iterable[Choice], tried: Iterable[Choice]) -> list[Choice]:
    """What is left of a product of completions when none is left that holds a joint action that did not come."""
    there, left = set(came), list(tried)
    while lost := [choice for choice in left if choice not in there]:
        held = Counter((act, own) for choice in lost for act, own in enumerate(choice))
        among = Counter((act, own) for choice in left for act, own in enumerate(choice))
        act, own = min(held, key=lambda each: (-held[each], among[each], each))
        left = [choice for choice in left if choice[act] != own]
    return left


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
        for choice, child in node.by_choice.items():
            holders.setdefault(choice[act], []).append(child)
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
        yield from (each for each in node.below.values() if isinstance(each, Failure))
