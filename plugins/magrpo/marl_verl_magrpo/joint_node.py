"""Nodes of a joint tree, pruning of failed joint actions, and the rows and episodes of the complete tree."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from marl_verl.algo.sampling import Failure, State
from marl_verl.episode import Episode, Turn

Choice = tuple[int, ...]
"""A joint action: for each act, the number of its action."""


@dataclass(eq=False)
class Joint:
    """A node: the state after a joint action, or the root.

    Attributes:
        path: numbers of the joint actions from the root to this node; empty at the root.
        state: with the turns of the path to it.
        above: the parent node.
        turns: one for each act of the joint action.
        counted: whether the latest proposal is the reward of a joint action on the path.
        failures: actions requested at this node that failed.
        below: result of each joint action, by choice; None where one of its actions failed or `prune` removed it.
            Empty at a leaf.
    """

    path: tuple[int, ...]
    state: State
    above: "Joint | None" = None
    turns: list[Turn] = field(default_factory=list)
    counted: bool = False
    failures: list[Failure] = field(default_factory=list)
    below: "dict[Choice, Joint | Failure | None]" = field(default_factory=dict)

    @property
    def name(self) -> str | None:
        return ".".join(map(str, self.path)) or None

    @property
    def children(self) -> "dict[Choice, Joint]":
        """The child nodes by choice, in order of their numbers."""
        return {choice: child for choice, child in self.below.items() if isinstance(child, Joint)}

    @property
    def lost(self) -> bool:
        """Whether the node was expanded, but all joint actions failed."""
        return bool(self.below) and not self.children

    def walk(self) -> "Iterator[Joint]":
        """Yield this node and all below it, parents first, siblings by number."""
        left = [self]
        while left:
            node = left.pop()
            yield node
            left += reversed(node.children.values())


def prune(root: Joint, crossed: bool) -> int:
    """Remove failed joint actions: all remaining paths are complete, and crossed ones at a node form a product.

    Returns:
        Number of successful joint actions that were removed too.
    """
    before = sum(1 for _ in root.walk())
    for node in reversed(list(root.walk())):
        came = [choice for choice, child in node.children.items() if not child.lost]
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


def episodes_of(root: Joint, crossed: bool) -> list[Episode]:
    """The episodes of the paths to the leaves. Their turns are the rows, numbered in the order of their nodes' paths,
    then of the acts of a joint action. Crossed, the rows of one node are consecutive, act by act."""
    rows: dict[int, Turn] = {}  # id of a turn -> its row
    for node in root.walk():
        rows |= _shared(node) if crossed else {id(turn): turn for turn in node.turns}
    for index, row in enumerate({id(row): row for row in rows.values()}.values()):
        row.index = index
    return [_path_to(node, rows) for node in root.walk() if not node.below]


def _path_to(leaf: Joint, rows: Mapping[int, Turn]) -> Episode:
    episode = leaf.state.episode
    assert episode is not None
    episode.turns = [rows.get(id(turn), turn) for turn in leaf.state.turns]
    if leaf.turns and rows[id(leaf.turns[-1])].node != leaf.name:  # crossed: the row belongs to other nodes too
        episode.leaf = leaf.name
    return episode


def _shared(node: Joint) -> dict[int, Turn]:
    """The rows of the acts at a crossed node: one per action, with the sum of its joint actions' rewards."""
    rows: dict[int, Turn] = {}
    for act in range(len(node.state.acts)):
        turns: dict[int, list[Turn]] = {}  # of each action
        for choice, child in node.children.items():
            turns.setdefault(choice[act], []).append(child.turns[act])
        for _, same_action in sorted(turns.items()):
            rows |= dict.fromkeys(map(id, same_action), _sum(same_action))
    return rows


def _sum(turns: list[Turn]) -> Turn:
    """Merge one action's turns in several joint actions into one row."""
    row = turns[0]
    row.node = "+".join(str(turn.node) for turn in turns)
    names = dict.fromkeys(name for turn in turns for name in turn.rewards)
    row.rewards = {name: sum(turn.rewards.get(name, 0.0) for turn in turns) for name in names}
    row.invalid = row.invalid if all(turn.invalid is not None for turn in turns) else None
    return row


def failures_of(root: Joint) -> Iterator[Failure]:
    """Yield the failures by node, in the order of paths; at a node first actions, then joint actions."""
    for node in root.walk():
        yield from node.failures
        yield from (child for child in node.below.values() if isinstance(child, Failure))
