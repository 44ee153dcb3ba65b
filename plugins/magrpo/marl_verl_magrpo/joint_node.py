"""Nodes of a joint tree, pruning of failed joint actions, and the rows and episodes of the complete tree."""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from marl_verl.algo.sampling import Failure
from marl_verl.episode import Act, Episode, Journal, Turn

Choice = tuple[int, ...]
"""A joint action: for each act, the number of its action."""


@dataclass(eq=False)
class Joint:
    """A node: the state after a joint action, or the root, with everything that was sampled there.

    Attributes:
        path: numbers of the joint actions from the root to this node; empty at the root.
        acts: pending acts of explored agents.
        turns: one for each act of the joint action.
        moved: turns of the transition after it, by agents that are not explored.
        pending: whether such a transition comes next.
        proposals: number of answers proposed on the path.
        counted: whether the latest proposal is the reward of a joint action on the path.
        above: the parent node.
        failures: actions requested at this node that failed.
        below: result of each joint action, by choice; None where one of its actions failed or `prune` removed it.
            Empty at a leaf.
    """

    path: tuple[int, ...]
    journal: Journal
    acts: tuple[Act, ...]
    proposals: int
    counted: bool = False
    turns: list[Turn] = field(default_factory=list)
    moved: list[Turn] = field(default_factory=list)
    pending: bool = False
    episode: Episode | None = None
    above: "Joint | None" = None
    failures: list[Failure] = field(default_factory=list)
    below: "dict[Choice, Joint | Failure | None]" = field(default_factory=dict)

    @property
    def name(self) -> str | None:
        """Name of the node."""
        return ".".join(map(str, self.path)) or None

    @property
    def reward(self) -> float:
        """The team's reward for the joint action."""
        return self.turns[0].rewards["team"]

    @property
    def by_choice(self) -> "dict[Choice, Joint]":
        """The child nodes, by choice."""
        return {choice: child for choice, child in self.below.items() if isinstance(child, Joint)}

    @property
    def children(self) -> "list[Joint]":
        """The child nodes, in order of their numbers."""
        return list(self.by_choice.values())

    @property
    def lost(self) -> bool:
        """Whether the node was expanded, but all joint actions failed."""
        return bool(self.below) and not self.by_choice

    def to_here(self) -> list[Turn]:
        """The turns of the path to this node."""
        nodes = [self]
        while nodes[-1].above is not None:
            nodes.append(nodes[-1].above)
        return [turn for node in reversed(nodes) for turn in (*node.turns, *node.moved)]

    def walk(self) -> "Iterator[Joint]":
        """Yield this node and all below it, parents first, siblings by number."""
        left = [self]
        while left:
            node = left.pop()
            yield node
            left += reversed(node.children)


def prune(root: Joint, crossed: bool) -> int:
    """Remove failed joint actions: all remaining paths are complete, and crossed ones at a node form a product.

    Returns:
        Number of successful joint actions that were removed too.
    """
    before = sum(1 for _ in root.walk())
    for node in reversed(list(root.walk())):
        came = [choice for choice, child in node.by_choice.items() if not child.lost]
        kept = set(product_of(came, node.below) if crossed else came)
        node.below = {choice: child if choice in kept else None for choice, child in node.below.items()}
    return before - sum(1 for _ in root.walk())


def product_of(came: Iterable[Choice], tried: Iterable[Choice]) -> list[Choice]:
    """Reduce a product of completions until no remaining joint action is missing from `came`."""
    there, left = set(came), list(tried)
    while lost := [choice for choice in left if choice not in there]:
        held = Counter((act, own) for choice in lost for act, own in enumerate(choice))
        among = Counter((act, own) for choice in left for act, own in enumerate(choice))
        act, own = min(held, key=lambda child: (-held[child], among[child], child))
        left = [choice for choice in left if choice[act] != own]
    return left


def number_rows(root: Joint, crossed: bool) -> None:
    """Number the turns of the tree as rows: in the order of their nodes' paths, then of the acts of a joint action.
    Crossed, the rows of one node are consecutive, act by act."""
    index = itertools.count()
    for node in root.walk():
        if crossed:
            for row in _shared(node):
                row.index = next(index)
        else:
            for row in node.turns:
                row.index = next(index)


def _shared(node: Joint) -> list[Turn]:
    """The rows of the acts at a crossed node: one per action, with the sum of its joint actions' rewards."""
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
    """Merge one action's turns in several joint actions into one row."""
    row = turns[0]
    row.node = "+".join(str(turn.node) for turn in turns)
    names = dict.fromkeys(name for turn in turns for name in turn.rewards)
    row.rewards = {name: sum(turn.rewards.get(name, 0.0) for turn in turns) for name in names}
    row.invalid = row.invalid if all(turn.invalid is not None for turn in turns) else None
    return row


def path_to(leaf: Joint) -> Episode:
    """The episode of the path to a leaf; its turns are the rows."""
    assert leaf.episode is not None
    leaf.episode.turns = leaf.to_here()
    if leaf.turns and leaf.turns[-1].node != leaf.name:  # crossed: the row belongs to other nodes too
        leaf.episode.leaf = leaf.name
    return leaf.episode


def failures_of(root: Joint) -> Iterator[Failure]:
    """Yield the failures by node, in the order of paths; at a node first actions, then joint actions."""
    for node in root.walk():
        yield from node.failures
        yield from (child for child in node.below.values() if isinstance(child, Failure))
