"""AB-MCTS at one node: whether to generate a new child here, and with which agent, or to continue in which child.

Wider (generate) or deeper (continue) is decided by Thompson sampling on the scores that either has led to, so how many
children a node gets is found out and not set. Two strategies; D(...) is the posterior given these scores:

    bandit   one draw decides: an arm per agent a, and one to continue
                 generate a   D(scores of the children that a made here)
                 continue     D(scores of all nodes below the children)
             then, to continue, among the children
                 child c      D(score of c, and of all nodes below it)
    stack    first the agent
                 agent a      D(scores of the children that a made here, and of all nodes below those)
             then, for that agent, generate or continue; then, to continue, among the children that a made
                 the same three, of a's children only

A new node's score thus goes to its parent's "generate", and on every edge above its parent to the child and to
"continue" there. Children in which nothing can be generated (their workflow has ended) are never drawn.

Sources: AB-MCTS-A of arXiv 2503.04412, with the agents of MARTI-MARS2, arXiv 2602.07848. Against the authors' code
(treequest, which MARTI calls): "stack" is its stack. In its bandit the agents of a node share one "generate", and the
agent is then chosen by its scores in the whole tree; here, as in MARS2's definition, each (node, agent) has its own. A
child's posterior begins with the child's own score, as there: otherwise siblings not gone into would all look alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from marl_verl_mars2.posteriors import Posterior, Prior, posterior, thompson

Strategy = Literal["bandit", "stack"]


@dataclass
class Child:
    """A child as its parent knows it.

    Attributes:
        agent: who made it.
        open: whether something can be generated in it or below it.
        posterior: of the scores in its subtree.
    """

    agent: str
    open: bool
    posterior: Posterior


class Arms:
    """The posteriors at one node.

    Args:
        agents: who can generate here.
    """

    def __init__(self, agents: Sequence[str], prior: Prior) -> None:
        self.prior = prior
        self.generate = {agent: posterior(prior) for agent in agents}
        self.children: list[Child] = []

    def choose(self, rng: Random) -> str | int:
        """The agent that is to generate here, or the number of the child to continue in."""
        raise NotImplementedError

    def made(self, agent: str, score: float, *, open: bool) -> None:
        """An agent has made a child here, the next in number."""
        self.tried(agent, score)
        self.children.append(Child(agent, open, posterior(self.prior)))
        self.children[-1].posterior.observe(score)

    def tried(self, agent: str, score: float) -> None:
        """What an agent's attempt to make a child here counts, whether or not there is a child now."""
        self.generate[agent].observe(score)

    def below(self, child: int, score: float) -> None:
        """There is a new score somewhere below a child."""
        self.children[child].posterior.observe(score)

    def _open(self, agent: str | None = None) -> list[tuple[int, Posterior]]:
        """The children to continue in, all or one agent's, by their numbers."""
        return [
            (number, child.posterior)
            for number, child in enumerate(self.children)
            if child.open and agent in (None, child.agent)
        ]


class Bandit(Arms):
    """The agent is inside the bandit."""

    def __init__(self, agents: Sequence[str], prior: Prior) -> None:
        super().__init__(agents, prior)
        self.go_on = posterior(prior)

    def choose(self, rng: Random) -> str | int:
        children = self._open()
        deeper = [(None, self.go_on)] if children else []
        agent = thompson(rng, [*self.generate.items(), *deeper])
        return thompson(rng, children) if agent is None else agent

    def below(self, child: int, score: float) -> None:
        super().below(child, score)
        self.go_on.observe(score)


class Stack(Arms):
    """First the agent, then whether it generates."""

    def __init__(self, agents: Sequence[str], prior: Prior) -> None:
        super().__init__(agents, prior)
        self.agent = {agent: posterior(prior) for agent in agents}
        self.go_on = {agent: posterior(prior) for agent in agents}

    def choose(self, rng: Random) -> str | int:
        agent = thompson(rng, self.agent.items())
        children = self._open(agent)
        if not children:
            return agent
        wider = thompson(rng, [(True, self.generate[agent]), (False, self.go_on[agent])])
        return agent if wider else thompson(rng, children)

    def tried(self, agent: str, score: float) -> None:
        super().tried(agent, score)
        self.agent[agent].observe(score)

    def below(self, child: int, score: float) -> None:
        super().below(child, score)
        agent = self.children[child].agent
        self.go_on[agent].observe(score)
        self.agent[agent].observe(score)


STRATEGIES: dict[Strategy, type[Arms]] = {"bandit": Bandit, "stack": Stack}
