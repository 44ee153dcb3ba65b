"""Tree search: AB-MCTS over the acts of a workflow, by one or several agents; the search of MARS2.

    repeat `nodes` times:
        node = root
        while Thompson sampling at the node says "continue in child c":  node = c        (`bandit`)
        sample one action for the act that blocks the node's run, by the drawn agent: a new node
        its score updates "generate" at its parent, and child and "continue" on every edge above

A node is one act with its action. It is scored by its partial value (see `PartialValue`). Generating at a node
restarts the workflow from its journal, so the workflow defines what a refinement is. Where a run is blocked on several
acts, the first is sampled, and the next one below it. Nodes whose workflow has ended are always leaves; every other
node can always be expanded. Acts of agents that are not trained belong to the node before them: they are sampled once,
without candidates, and are neither nodes nor rows.

The budget is exact: `nodes` attempts at a node. One that fails (no action, a workflow that raises, no score) is a
`Failure`, and its number is skipped. To discourage the search from continuing there, it counts as the lowest
score of the tree so far, at most 0; the sources do not specify this case.

Sources: AB-MCTS, arXiv 2503.04412; several agents in one tree, MARTI-MARS2, arXiv 2602.07848 (8 nodes a task in
training, 60 at inference). Posteriors and strategies, and how they differ from the authors' code: `bandit`.
"""

from collections.abc import Sequence
from dataclasses import field
from random import Random
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Interval

from marl_verl.algo.sampling import (
    SESSION,
    Failure,
    PartialValue,
    Sample,
    Sampler,
    SamplingContext,
    State,
    attempt,
    expand,
    leaf_episode,
    root,
    scored,
    settled,
)
from marl_verl.episode import Episode
from marl_verl.errors import MarlError, check_known
from marl_verl.options import Count
from marl_verl.tasks import TaskSet
from marl_verl_mars2.bandit import Node, Prior, Strategy


class TreeSearch(Sampler):
    """The nodes of a task, one after the other, each where Thompson sampling puts it.

    Options:
        nodes: number of nodes per task, failed ones included.
        strategy: "bandit" (generate with agent a, for each a, or continue, in one draw) or "stack" (first the agent).
        prior: of every posterior: "normal", or "beta", which clips scores to [0, 1].
        arms: agents that may take each other's acts: where the workflow calls one of them, any of them may act. Others
            take their own acts only. In training all of them must be trained.
        partial_value: what a node before the workflow's end is worth.
        guide: "reward", the mixed reward of the node's turn; every path to a leaf is an episode. "public", for
            inference: the public score of the node's answer (0 without one). The path to the node where it is highest,
            the earliest of equals, is the only episode, and the other turns are its off-path turns.
        decay: gamma of MARS2-T+ at inference, above 0 and at most 1: a draw for one more child of a node with c
            children is worth gamma^c as much (`bandit`). 1: off.
    """

    branches: ClassVar[bool] = True
    one_side: ClassVar[str | None] = "the value of a node counts for all agents that acted above it"
    nodes: Count = 8
    strategy: Strategy = "bandit"
    prior: Prior = "normal"
    arms: list[str] = field(default_factory=list)
    partial_value: PartialValue = "proposal"
    guide: Literal["reward", "public"] = "reward"
    decay: Annotated[float, Interval(gt=0, le=1)] = 1.0

    @property
    def public(self) -> bool:
        """Whether `guide` is "public": then validations may use the sampler."""
        return self.guide == "public"

    def check(self, agents: Sequence[str]) -> None:
        for arm in self.arms:
            check_known("agent in arms of tree-search", arm, agents)

    def warning(self, tasks: TaskSet, moves: Sequence[Sequence[str]]) -> str | None:
        """MarlError if no path of `nodes` acts reaches the first act of an agent, which would never learn."""
        order = list(dict.fromkeys(agent for move in moves for agent in move))
        for place, agent in enumerate(order[self.nodes :], start=self.nodes + 1):
            if agent not in self.arms or not {*self.arms} & {*order[: self.nodes]}:
                problem = f"a tree of {self.nodes} nodes ends before agent '{agent}' acts, which would never learn"
                raise MarlError(f"{problem}: set 'marl.sampler.options.nodes' to at least {place}")
        return None

    async def sample(self, context: SamplingContext) -> Sample:
        """The tree of one task. It draws from a generator of its own, seeded by the run's seed, workflow and task."""
        if not self.public and (untrained := sorted({*self.arms} - context.explored)):
            message = f"arms of tree-search: agent '{untrained[0]}' is not trained, so that its acts are no nodes"
            raise MarlError(f"{message}. Remove it from the arms, or train its policy.")
        start = await attempt(context, SESSION, root(context, SESSION, self.arms))
        if isinstance(start, Failure):
            return Sample(failures=[start] * self.nodes)
        if start.episode is not None:  # the workflow ends without an act of a trained agent
            sample = Sample([start.episode])
            sample.count_transitions()
            return sample
        sample = Sample()
        rng = Random(f"tree-search {start.journal.seed} {context.label}")
        top = self._node(start)
        nodes: list[Node] = []
        lowest = 0.0
        for number in range(self.nodes):
            parent, agent = descend(top, rng)
            made = await attempt(context, SESSION, self._generate(context, parent, agent, str(number)))
            if isinstance(made, Failure):
                sample.failures.append(made)
                parent.tried(agent, lowest)
                continue
            parent.add(made)
            nodes.append(made)
            lowest = min(lowest, made.score)
            if made.state.value_tokens:
                sample.add_tokens("rollout", made.state.value_tokens)
        leaves = [node for node in nodes if not node.children]  # in node order: every node is on a path to one
        sample.episodes = best_path(nodes) if self.public else [leaf_episode(leaf.state) for leaf in leaves]
        sample.count_transitions()
        return sample

    async def _generate(self, context: SamplingContext, parent: Node, agent: str, name: str) -> Node:
        """A new child of a node, by an agent; the parent does not have it yet."""
        where, value = (context, parent.state, parent.state.acts[0], SESSION, name), self.partial_value
        state = await expand(*where, index=int(name), parent=parent.name, partial_value=value, agent=agent)
        state = await settled(context, state, SESSION)
        score = state.value
        if self.public:
            assert state.episode is not None
            answer = state.episode.answer
            score = 0.0 if answer is None else await scored(context, context.public_score(answer))
        return self._node(state, parent, agent, name, score)

    def _node(self, state: State, *edge: Any) -> Node:
        """A new node, at which the agents generate that may take the state's next act (none without an act)."""
        called = [act.agent for act in state.acts[:1]]
        agents = self.arms if called and called[0] in self.arms else called
        return Node(agents, self.strategy, self.prior, self.decay, state, *edge)


def descend(top: Node, rng: Random) -> tuple[Node, str]:
    node = top
    while not isinstance(choice := node.choose(rng), str):
        node = choice
    return node, choice


def best_path(nodes: Sequence[Node]) -> list[Episode]:
    """The episode of the path to the node with the highest score, all other turns beside it; none without a node."""
    if not nodes:
        return []
    best = max(nodes, key=lambda node: node.score)  # the first of equals
    on_path = {turn.node for turn in best.state.turns}
    return [leaf_episode(best.state, [turn for node in nodes if node.name not in on_path for turn in node.state.own])]
