"""The joint tree: agents that act at once sample K each, and every joint action goes on.

At a joint node the run stands at n acts, none of which sees another: a joint move, concurrent lanes, or one act alone.
Agent i samples a_(i,k) ~ pi_i(. | o_i), k = 0 .. K - 1, and the joint actions are

    aligned:  (a_(1,j), ..., a_(n,j)),  j = 0 .. K - 1
    cross:    {a_(1,k)} x ... x {a_(n,k)},  K^n of them, the last act's k running fastest

Each leads to a child of its own: the run restarted with these actions, and taken to where it stands next.

Reward of a joint action: the score of the answer if the workflow ended with it, unless that is the latest proposal and
was scored on the way; otherwise of the latest proposal if the workflow proposed anew since the node above; otherwise 0.
So the rewards of a path add up, and no state is rolled out to the end: R_j = r_j + gamma * mean over the children's R
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
from dataclasses import dataclass
from typing import ClassVar, Literal

from marl_verl.episode import Act, Action, Run, Turn
from marl_verl.errors import MarlError
from marl_verl.sampling import (
    SESSION,
    AttemptFailed,
    Failure,
    Sample,
    Sampler,
    SamplingContext,
    ask,
    attempt,
    check_restarted,
    scored,
)
from marl_verl_magrpo.joint_node import Joint, failures_of, number_rows, path_to, prune

Asked = asyncio.Task[Action | Failure]


class JointTree(Sampler):
    """One tree a task: `sessions` is K, what each agent samples at a joint node.

    Joint action j at the root is node "j", below node "p" it is "p.j". Aligned, a joint action has one row for each of
    its acts. Crossed, an action is one row however many joint actions hold it: its node is their names, joined by "+",
    its rewards are the sums of theirs, and it is of no use where it was of no use in all of them. Episodes are the
    paths to the leaves. No node, and no row, is a joint action that fails, or below which all fail, or, crossed, that
    goes with one of these for a product to be left.

    Which `partial_value`: "proposal" where every path has equally many answers scored, such as a draft that is revised
    in a fixed number of rounds, with a proposal after each. "zero" where their number varies, as with a verifier that
    may accept or send back: there every further proposal would add a score, and accepting one would add none.

    `max_nodes` bounds where the tree branches, and no path waits for another: at depth d, with e = n if crossed,
    else 1,

        K_d = the largest k <= K with W_d * k^e <= max_nodes - S_d, at least 1
        W_0 = 1,  S_0 = 0,  W_(d+1) = W_d * K_d^e,  S_(d+1) = S_d + W_(d+1)

    W is the width of the tree and S its joint actions so far, as a path computes them from its own nodes: exact where
    all nodes of a depth have as many acts. Where nothing is left K_d is 1: a path goes on to its end, unbranched.

    Options:
        joint: which joint actions there are.
        partial_value: what is scored before the workflow's end: what it proposes, or nothing.
        stop_above: where the mean team reward over a node's joint actions is above it, they are leaves; None: never.
            With it the joint actions of one node wait for each other.
        max_nodes: joint actions up to which nodes branch. Paths still go to their ends, so that W nodes are added at
            every level below that, and a tree can have more.
    """

    branches: ClassVar[bool] = True
    incremental: ClassVar[bool] = True
    joint: Literal["aligned", "cross"] = "aligned"
    partial_value: Literal["proposal", "zero"] = "proposal"
    stop_above: float | None = None
    max_nodes: int = 64

    def __post_init__(self) -> None:
        if self.max_nodes < 1:
            raise MarlError(f"'max_nodes' must be at least 1, got {self.max_nodes}")
        if self.partial_value == "zero" and self.stop_above is not None:
            raise MarlError(
                "'stop_above' has no score to stop by where 'partial_value' is 'zero': leave it out, or set "
                "'partial_value' to 'proposal'"
            )

    @property
    def crossed(self) -> bool:
        """With joint "cross"."""
        return self.joint == "cross"

    async def sample(self, context: SamplingContext) -> Sample:
        """Grow the tree, all branches at once."""
        root = await attempt(context, SESSION, _root(context))
        if isinstance(root, Failure):
            return Sample(failures=[root] * context.sessions)  # none of the first joint actions could be sampled
        await self._spawn(context, root, Size())
        failures = list(failures_of(root))  # each once, those below what is taken out as well
        dropped = prune(root, self.crossed)
        number_rows(root, self.crossed)
        episodes = [path_to(node) for node in root.walk() if not node.below]
        return Sample(episodes, failures, dropped=dropped)

    async def _spawn(self, context: SamplingContext, node: Joint, size: Size) -> None:
        """Sample all that is below a node."""
        n = len(node.acts)
        if n == 0:
            return
        cross = self.crossed
        k = size.branching(context.sessions, n if cross else 1, self.max_nodes)
        chosen = list(itertools.product(range(k), repeat=n)) if cross else [(j,) * n for j in range(k)]
        size = size.below(len(chosen))
        async with asyncio.TaskGroup() as group:
            asked = [[group.create_task(_action(context, node, act, own)) for own in range(k)] for act in node.acts]
            made = []
            for number, choice in enumerate(chosen):
                actions = [asked[act][own] for act, own in enumerate(choice)]
                made.append(group.create_task(self._child(context, node, number, actions, size)))
        came = [task.result() for each in asked for task in each]
        node.failures = [each for each in came if isinstance(each, Failure)]
        node.below = {choice: task.result() for choice, task in zip(chosen, made, strict=True)}
        rewards = [child.reward for child in node.children]
        if self.stop_above is not None and rewards and sum(rewards) / len(rewards) <= self.stop_above:
            async with asyncio.TaskGroup() as group:
                for child in node.children:
                    group.create_task(self._spawn(context, child, size))

    async def _child(
        self, context: SamplingContext, above: Joint, number: int, asked: list[Asked], size: Size
    ) -> Joint | Failure | None:
        """What becomes of a joint action, and of all below it unless its siblings have a say in that."""
        scores_proposals = self.partial_value == "proposal"
        made = await attempt(context, SESSION, _restarted(context, above, number, asked, scores_proposals))
        if isinstance(made, Failure):
            await asyncio.wait(asked)  # where the time is over, theirs is too
            if any(isinstance(task.result(), Failure) for task in asked):
                return None  # told there, once for all joint actions that were to have it
        elif self.stop_above is None:
            await self._spawn(context, made, size)
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


async def _root(context: SamplingContext) -> Joint:
    async with context.start(SESSION) as run:
        acts = await run.run_until_blocked()
        return Joint((), run.journal, acts or (), len(run.proposals))


async def _action(context: SamplingContext, node: Joint, act: Act, number: int) -> Action | Failure:
    name = ".".join(map(str, (*node.path, number)))
    return await attempt(context, SESSION, ask(context, act, SESSION, name))


async def _restarted(
    context: SamplingContext, above: Joint, number: int, asked: list[Asked], scores_proposals: bool
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
            raise AttemptFailed(action.reason, action.detail)
        journal = journal.extended(act, action)
        index = len(before) + len(turns)  # for who rewards the turn: the row's own is known when the tree is complete
        turns.append(context.turn(act, action, SESSION, index=index, node=name, parent=above.name))
    async with context.start(SESSION, journal) as run:
        acts = await run.run_until_blocked()
        check_restarted(context, run, journal)
        proposed = scores_proposals and len(run.proposals) > above.proposals
        answer = run.answer if run.finished else run.proposals[-1] if proposed else None
        episode = await scored(context, context.state(run, SESSION, [*before, *turns], answer))
        await scored(context, context.reward(turns, episode, run))
        if run.finished and above.counted and not proposed and await scored(context, _same(run)):
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
