"""AB-MCTS at one node: whether to generate a new child here, and with which agent, or to continue in which child.

Thompson sampling on the scores so far decides between wider (generate) and deeper (continue), so the number of children
of a node is adaptive. Two strategies; D(...) is the posterior given these scores:

    bandit   one draw among an arm per agent a and one to continue
                 generate a   D(scores of the children that a made here)
                 continue     D(scores of all nodes below the children)
             then, to continue, among the children
                 child c      D(score of c, and of all nodes below it)
    stack    first the agent
                 agent a      D(scores of the children that a made here, and of all nodes below those)
             then, for that agent, generate or continue; then, to continue, among the children that a made
                 the same three, of a's children only

At inference, MARS2-T+ lowers the draws of "generate" by w = gamma^c at a node with c children, so that a search with a
large budget goes deeper: option `decay` is gamma, 1 without. The paper's gamma(d) depends on the depth, and is about
0.98 when shallow; its form is not known to us, so gamma is a constant here.

A new node's score updates its parent's "generate", and on every edge above its parent the child and "continue".
Children in which nothing can be generated (their workflow has ended) are never drawn.

Sources: AB-MCTS-A of arXiv 2503.04412, with the agents of MARTI-MARS2, arXiv 2602.07848. Compared with the authors'
code (treequest, which MARTI calls): "stack" is the same. In their bandit the agents of a node share one "generate",
and the agent is then chosen by its scores in the whole tree; here, as in MARS2's definition, each (node, agent) has
its own. A child's posterior includes the child's own score, as in their code: otherwise unexpanded siblings would all
be equal.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from marl_verl_mars2.posteriors import Posterior, Prior, posterior, thompson

Strategy = Literal["bandit", "stack"]


@dataclass
class Child:
    """A child, from the view of its parent.

    Attributes:
        agent: the agent that made it.
        open: whether a node can be generated at it or below it.
        posterior: of the scores in its subtree.
    """

    agent: str
    open: bool
    posterior: Posterior


class Arms:
    """The posteriors at one node.

    Args:
        agents: agents that can generate here.
        decay: gamma, see the module.
    """

    def __init__(self, agents: Sequence[str], prior: Prior, decay: float = 1.0) -> None:
        self.prior, self.decay = prior, decay
        self.generate = {agent: posterior(prior) for agent in agents}
        self.children: list[Child] = []

    def choose(self, rng: Random) -> str | int:
        """Draw the agent that generates here, or the number of the child to continue in."""
        raise NotImplementedError

    def made(self, agent: str, score: float, *, open: bool) -> None:
        """Record a new child here, made by an agent."""
        self.tried(agent, score)
        self.children.append(Child(agent, open, posterior(self.prior)))
        self.children[-1].posterior.observe(score)

    def tried(self, agent: str, score: float) -> None:
        """Record the score of an agent's attempt to make a child here, successful or not."""
        self.generate[agent].observe(score)

    def below(self, child: int, score: float) -> None:
        """Record a new score below a child."""
        self.children[child].posterior.observe(score)

    @property
    def weight(self) -> float:
        """The weight of draws of generating."""
        return self.decay ** len(self.children)

    def _open(self, agent: str | None = None) -> list[tuple[int, Posterior]]:
        """The children to continue in, all or one agent's, by their numbers."""
        return [
            (number, child.posterior)
            for number, child in enumerate(self.children)
            if child.open and agent in (None, child.agent)
        ]


class Bandit(Arms):
    """Strategy "bandit": one draw among agents and continue."""

    def __init__(self, agents: Sequence[str], prior: Prior, decay: float = 1.0) -> None:
        super().__init__(agents, prior, decay)
        self.continuation = posterior(prior)

    def choose(self, rng: Random) -> str | int:
        children = self._open()
        deeper = [(None, self.continuation)] if children else []
        weights: dict[str | None, float] = dict.fromkeys(self.generate, self.weight)
        agent = thompson(rng, [*self.generate.items(), *deeper], weights)
        return thompson(rng, children) if agent is None else agent

    def below(self, child: int, score: float) -> None:
        super().below(child, score)
        self.continuation.observe(score)


class Stack(Arms):
    """Strategy "stack": draw the agent, then generate or continue."""

    def __init__(self, agents: Sequence[str], prior: Prior, decay: float = 1.0) -> None:
        super().__init__(agents, prior, decay)
        self.agent = {agent: posterior(prior) for agent in agents}
        self.continuation = {agent: posterior(prior) for agent in agents}

    def choose(self, rng: Random) -> str | int:
        agent = thompson(rng, self.agent.items())
        children = self._open(agent)
        if not children:
            return agent
        wider = thompson(rng, [(True, self.generate[agent]), (False, self.continuation[agent])], {True: self.weight})
        return agent if wider else thompson(rng, children)

    def tried(self, agent: str, score: float) -> None:
        super().tried(agent, score)
        self.agent[agent].observe(score)

    def below(self, child: int, score: float) -> None:
        super().below(child, score)
        agent = self.children[child].agent
        self.continuation[agent].observe(score)
        self.agent[agent].observe(score)


STRATEGIES: dict[Strategy, type[Arms]] = {"bandit": Bandit, "stack": Stack}
