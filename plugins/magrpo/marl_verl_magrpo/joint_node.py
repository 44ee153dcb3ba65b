"""The nodes of a joint tree, and what is made of them when it is complete: what failed goes, the rest are rows."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from marl_verl.episode import JOIN, Act, Episode, Journal, Turn
from marl_verl.sampling import Failure

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


def path_to(leaf: Joint) -> Episode:
    """The episode of the path to a leaf, made of rows."""
    assert leaf.episode is not None
    leaf.episode.turns = leaf.to_here()
    if leaf.turns[-1].node != leaf.name:  # crossed: the row is at other nodes, too
        leaf.episode.leaf = leaf.name
    return leaf.episode


def failures_of(root: Joint) -> Iterator[Failure]:
    """By node, in the order of paths; at a node its actions, then its joint actions."""
    for node in root.walk():
        yield from node.failures
        yield from (each for each in node.below.values() if isinstance(each, Failure))
