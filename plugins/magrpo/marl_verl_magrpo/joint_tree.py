"""Joint tree: agents that act simultaneously sample K actions each, and every joint action is expanded.

At a joint node the run is blocked on n acts that do not see each other: a joint move, concurrent lanes, or one act.
Agent i samples a_(i,k) ~ pi_i(. | o_i), k = 0 .. K - 1, and the joint actions are

    aligned:  (a_(1,j), ..., a_(n,j)),  j = 0 .. K - 1
    cross:    {a_(1,k)} x ... x {a_(n,k)},  K^n of them, the last act's k running fastest

Each leads to its own child: the run restarted with these actions, and run until blocked. Acts of agents that are not
trained, such as an expert's edits, are a part of the transition to the next state: sampled once for each joint action
that continues. In a joint move with trained agents they follow the joint action of these.

Reward of a joint action: the score of the answer if the workflow ended with it, unless the answer is the latest
proposal and was scored before; otherwise the score of the latest proposal if there is a new one since the parent;
otherwise 0. So the rewards of a path add up: R_j = r_j + gamma * mean over the children's R (`TreeMean`).

A joint action that fails, or below which all fail, is removed when the tree is complete, from the leaves upwards.
Crossed, whole completions are removed until a product is left: the returns of all completions are then sums of equally
many terms, so that a failure biases no advantage.

    while a joint action of the product failed:
        drop the completion that most failed joint actions contain, and all joint actions that contain it
        (ties: the completion in the fewest joint actions, of the first act, with the lowest k)

Source: MAGRPO, arXiv 2508.04652, and the authors' code.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from marl_verl import Action, Episode, MarlError, TaskSet, Turn
from marl_verl.algo.sampling import (
    SESSION,
    AttemptFailed,
    Failure,
    Sample,
    Sampler,
    SamplingContext,
    State,
    ask,
    attempt,
    check_restarted,
    reached,
    root,
    scored,
    transition,
)
from marl_verl.episode import Run
from marl_verl.options import Count, Positive

Asked = asyncio.Task[Action | Failure]
Choice = tuple[int, ...]
"""A joint action: for each act, the number of its action."""


@dataclass(eq=False)
class Joint:
    """A node: the state after a joint action, or the root."""

    path: tuple[int, ...]  # numbers of the joint actions from the root to this node
    state: State  # with the turns of the path to it
    above: "Joint | None" = None
    width: int = 1  # W_d and S_d of the path, and the number of joint actions at the node
    used: int = 0
    branches: int = 1
    turns: list[Turn] = field(default_factory=list)  # one for each act of the joint action
    counted: bool = False  # whether the latest proposal is the reward of a joint action on the path
    failures: list[Failure] = field(default_factory=list)  # actions requested at this node that failed
    # result of each joint action, by choice; None where one of its actions failed or `prune` removed it
    below: "dict[Choice, Joint | Failure | None]" = field(default_factory=dict)

    @property
    def name(self) -> str | None:
        return ".".join(map(str, self.path)) or None

    @property
    def children(self) -> "dict[Choice, Joint]":
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


class JointTree(Sampler):
    """Sample one joint tree per task.

    Joint action j at the root is node "j", below node "p" it is "p.j". Aligned, a joint action has one row for each of
    its acts. Crossed, an action is one row, however many joint actions contain it: its node is their names joined by
    "+", its rewards are the sums of theirs, and it is invalid if it was invalid in all of them. Episodes are the paths
    to the leaves. A joint action that is removed is no node and no row.

    Choice of `partial_value`: "proposal" if every path has the same number of proposals, such as a draft revised in a
    fixed number of rounds. "zero" if the number varies, as with a verifier that may accept or reject: otherwise each
    further proposal would add a score, and accepting one would add none.

    `max_nodes` limits the branching, without synchronisation between paths: at depth d, with e = n if crossed, else 1,

        K_d = the largest k <= K with W_d * k^e <= max_nodes - S_d, at least 1
        W_0 = 1,  S_0 = 0,  W_(d+1) = W_d * K_d^e,  S_(d+1) = S_d + W_(d+1)

    W is the width of the tree and S its number of joint actions so far, computed from the nodes of the path: exact if
    all nodes of a depth have the same number of acts. When the limit is reached K_d is 1: the path continues
    unbranched.

    Options:
        joint_actions: K, the number of joint actions at a node; crossed, the number of actions per agent there.
        joint: how actions are combined into joint actions: "aligned" or "cross".
        partial_value: what is scored before the workflow's end: its latest proposal, or nothing.
        stop_above: if the mean team reward over a node's joint actions (with the task set's shift) is above it, these
            are leaves; None: never. With it the joint actions of one node wait for each other.
        max_nodes: number of joint actions up to which nodes branch. Paths still continue to their ends, so a tree can
            have more nodes: W more at every further level.
    """

    branches: ClassVar[bool] = True
    incremental: ClassVar[bool] = True
    one_side: ClassVar[str | None] = "a joint action has one reward for all agents that act in it"
    joint_actions: Count = 8
    joint: Literal["aligned", "cross"] = "aligned"
    partial_value: Literal["proposal", "zero"] = "proposal"
    stop_above: float | None = None
    max_nodes: Positive = 64

    def __post_init__(self) -> None:
        if self.partial_value == "zero" and self.stop_above is not None:
            raise MarlError("'stop_above' needs scores, but 'partial_value' is 'zero': leave out one of them")

    def warning(self, tasks: TaskSet, moves: Sequence[Sequence[str]]) -> str | None:
        """With three or more turns, a path that stops with a positive reward lacks those of the turns that are left."""
        turns = len(moves)
        if self.stop_above is None or turns < 3 or (self.stop_above < 0 and tasks.shift < 0):
            return None
        problem = f"stop_above={self.stop_above:g} with {turns} turns stops at positive rewards"
        remedy = "Shift rewards to 0 or less (marl.task.options.shift), and the threshold too."
        return f"{problem}, so that an earlier solution has a lower return. {remedy}"

    @property
    def crossed(self) -> bool:
        return self.joint == "cross"

    async def sample(self, context: SamplingContext) -> Sample:
        start = await attempt(context, SESSION, root(context, SESSION))
        if isinstance(start, Failure):
            return Sample(failures=[start] * self.joint_actions)  # none of the first joint actions could be sampled
        top = Joint((), start)
        await self._spawn(context, top)
        failures = list[Failure]()  # by node, first those of actions; also those below nodes that will be removed
        for node in top.walk():
            failures += [*node.failures, *(child for child in node.below.values() if isinstance(child, Failure))]
        dropped = prune(top, self.crossed)
        sample = Sample(episodes_of(top, self.crossed), failures, dropped=dropped)
        sample.count_transitions()
        return sample

    async def _spawn(self, context: SamplingContext, node: Joint) -> None:
        """Sample the transition after a node, and all nodes below it."""
        if node.state.pending:
            failed = await attempt(context, SESSION, self._settle(context, node))
            if isinstance(failed, Failure):
                node.below = {(0,): failed}  # it leads to nothing
                return
        acts, n = node.state.acts, len(node.state.acts)
        if n == 0:
            return
        most, power = self.max_nodes - node.used, n if self.crossed else 1
        k = max((k for k in range(2, self.joint_actions + 1) if node.width * k**power <= most), default=1)
        chosen = list(itertools.product(range(k), repeat=n)) if self.crossed else [(j,) * n for j in range(k)]
        node.branches = len(chosen)
        async with asyncio.TaskGroup() as group:
            names = [".".join(map(str, (*node.path, own))) for own in range(k)]
            work = [[attempt(context, SESSION, ask(context, act, SESSION, name)) for name in names] for act in acts]
            asked = [[group.create_task(action) for action in actions] for actions in work]
            made = []
            for number, choice in enumerate(chosen):
                actions = [asked[act][own] for act, own in enumerate(choice)]
                made.append(group.create_task(self._child(context, node, number, actions)))
        came = [task.result() for tasks in asked for task in tasks]
        node.failures = [action for action in came if isinstance(action, Failure)]
        node.below = {choice: task.result() for choice, task in zip(chosen, made, strict=True)}
        rewards = [child.turns[0].rewards["team"] for child in node.children.values()]
        if self.stop_above is not None and rewards and sum(rewards) / len(rewards) <= self.stop_above:
            async with asyncio.TaskGroup() as group:
                for child in node.children.values():
                    group.create_task(self._spawn(context, child))

    async def _child(
        self, context: SamplingContext, above: Joint, number: int, asked: list[Asked]
    ) -> Joint | Failure | None:
        """Sample the node of a joint action and, without `stop_above`, all nodes below it."""
        made = await attempt(context, SESSION, self._restarted(context, above, number, asked))
        if isinstance(made, Failure):
            await asyncio.wait(asked)  # after a timeout they have timed out too
            if any(isinstance(task.result(), Failure) for task in asked):
                return None  # reported at the node, once for all joint actions that contain the action
        elif self.stop_above is None:
            await self._spawn(context, made)
        return made

    async def _restarted(self, context: SamplingContext, above: Joint, number: int, asked: list[Asked]) -> Joint:
        """The node of a joint action, with its turns rewarded. AttemptFailed, WorkflowError: it leads to nothing."""
        await asyncio.wait(asked)  # not each by itself: giving up would cancel actions that other joint actions hold
        before, width = above.state, above.width * above.branches
        node = Joint((*above.path, number), before, above, width, above.used + width)
        journal = before.journal
        for act, task in zip(before.acts, asked, strict=True):
            action = task.result()
            if isinstance(action, Failure):
                raise AttemptFailed(action.reason, action.detail)
            journal = journal.extended(act, action)
            index = len(before.turns) + len(node.turns)  # preliminary, for reward functions: not the row's index
            node.turns.append(context.turn(act, action, SESSION, index=index, node=node.name, parent=above.name))
        async with context.start(SESSION, journal) as run:
            await run.run_until_blocked()
            check_restarted(context, run, journal)
            turns = (*before.turns, *node.turns)
            if not self._proposed(before, run):  # a transition decides the reward
                turns += tuple(await transition(context, run, SESSION, node.name, before.explored))
            await self._reward(context, node, run, turns)
            return node

    async def _settle(self, context: SamplingContext, node: Joint) -> None:
        """Sample the transition after a node; the reward is that of what it has newly proposed, or ended with."""
        state = node.state
        async with context.start(SESSION, state.journal) as run:
            turns = (*state.turns, *await transition(context, run, SESSION, node.name, state.explored))
            if run.finished or len(run.proposals) > state.proposals:
                await self._reward(context, node, run, turns)
            else:
                node.state = await reached(context, run, SESSION, state.explored, turns, None)

    def _proposed(self, before: State, run: Run) -> bool:
        """Whether a run has a new proposal that is scored."""
        return self.partial_value == "proposal" and len(run.proposals) > before.proposals

    async def _reward(self, context: SamplingContext, node: Joint, run: Run, turns: tuple[Turn, ...]) -> None:
        """Set the state of a node, to which these turns lead, and the rewards of its joint action."""
        above = node.above
        assert above is not None
        proposed = self._proposed(above.state, run)
        answer = run.answer if run.finished else run.proposals[-1] if proposed else None
        node.state = await reached(context, run, SESSION, above.state.explored, turns, answer)
        assert node.state.episode is not None
        await scored(context, context.reward(node.turns, node.state.episode, run))
        if run.finished and above.counted and not proposed and run.answer == run.proposals[-1]:
            for turn in node.turns:
                turn.rewards["team"] = 0.0  # the score is the reward of the joint action that proposed the answer
        node.counted = above.counted or proposed


def prune(root: Joint, crossed: bool) -> int:
    """Remove failed joint actions: all remaining paths are complete, and crossed ones at a node form a product. Returns
    the number of successful joint actions that were removed too."""
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
    episodes = []
    for leaf in (node for node in root.walk() if not node.below):
        assert leaf.state.episode is not None
        episodes.append(leaf.state.episode)
        episodes[-1].turns = [rows.get(id(turn), turn) for turn in leaf.state.turns]
        if leaf.turns and rows[id(leaf.turns[-1])].node != leaf.name:  # crossed: the row belongs to other nodes too
            episodes[-1].leaf = leaf.name
    return episodes


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
