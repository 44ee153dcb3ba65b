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
large budget goes deeper: option `decay` is gamma, 1 without. The paper's gamma depends on the depth, ours does not.
Children in which nothing can be generated (their workflow has ended) are never drawn.

Sources: AB-MCTS-A of arXiv 2503.04412, with the agents of MARTI-MARS2, arXiv 2602.07848; README.md has the differences
from the authors' code (treequest).

Posteriors are conjugate ones of a mean score, updated one score at a time.

Normal scores, with a normal-inverse-gamma prior NIG(m, kappa, nu, tau2):

    sigma^2 ~ nu tau2 / chi^2(nu),   mu | sigma^2 ~ N(m, sigma^2 / kappa),   x | mu, sigma^2 ~ N(mu, sigma^2)

    a score x:  nu'    = nu + 1            tau2' = (nu tau2 + kappa / kappa' (x - m)^2) / nu'
                kappa' = kappa + 1         m'    = (kappa m + x) / kappa'

so that mu alone is Student's t: (mu - m) / sqrt(tau2 / kappa) ~ t(nu). Source: Murphy, Probabilistic Machine Learning:
Advanced Topics, 3.4.3.3, where the same is written for n scores at once.

Scores in [0, 1], with a Beta(a, b) prior on their mean p, each as a fractional coin flip x:

    a score x:  a' = a + x,   b' = b + 1 - x,   p ~ Beta(a, b)

A draw is one of the *mean* (mu, or p), not of the next score, as in the authors' code: the variance of an arm's scores
is no reason to try it again, only the uncertainty of its mean. The priors are theirs, too.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, TypeVar

from marl_verl.algo.sampling import State

Prior = Literal["normal", "beta"]
Strategy = Literal["bandit", "stack"]
K = TypeVar("K")


@dataclass(slots=True)
class Normal:
    """Normal-inverse-gamma. With nu = 1, before any score, a draw is Cauchy: every arm is tried occasionally."""

    m: float = 0.0
    kappa: float = 1.0
    nu: float = 1.0
    tau2: float = 0.1

    def observe(self, score: float) -> None:
        squares = self.nu * self.tau2 + self.kappa / (self.kappa + 1) * (score - self.m) ** 2
        self.m = (self.kappa * self.m + score) / (self.kappa + 1)
        self.kappa += 1
        self.nu += 1
        self.tau2 = squares / self.nu

    def draw(self, rng: Random) -> float:
        chi2 = 2 * rng.gammavariate(self.nu / 2, 1)
        return rng.gauss(self.m, math.sqrt(self.nu * self.tau2 / chi2 / self.kappa))


@dataclass(slots=True)
class Beta:
    """Beta. Scores are clipped to [0, 1]."""

    a: float = 0.5
    b: float = 0.5

    def observe(self, score: float) -> None:
        score = min(max(score, 0.0), 1.0)
        self.a += score
        self.b += 1 - score

    def draw(self, rng: Random) -> float:
        return rng.betavariate(self.a, self.b)


Posterior = Normal | Beta
PRIORS: Mapping[Prior, type[Posterior]] = {"normal": Normal, "beta": Beta}


def thompson(rng: Random, arms: Iterable[tuple[K, Posterior]], weights: Mapping[K, float] = {}) -> K:
    """Thompson sampling: draw from each posterior, in order, and take the arm whose draw is highest. `weights`: arm ->
    a factor <= 1 of its draws; a draw below 0 is divided by it."""
    drawn = [(posterior.draw(rng), weights.get(arm, 1.0), arm) for arm, posterior in arms]
    return max(drawn, key=lambda item: item[0] * item[1] if item[0] > 0 else item[0] / item[1])[2]


@dataclass(eq=False)
class Node:
    """A node of the search tree, with the posteriors of what to do next."""

    agents: Sequence[str]  # that can generate a child here; none where the workflow has ended
    strategy: Strategy
    prior: Prior
    decay: float  # gamma
    state: State  # that its attempt leads to
    parent: "Node | None" = None
    agent: str = ""  # of the attempt; "" for the root
    name: str | None = None  # its number in order of creation; None for the root
    score: float = 0.0

    def __post_init__(self) -> None:
        new = PRIORS[self.prior]
        # of the scores of the node and all below; of all below the children, of an agent (`stack`) or "" (`bandit`)
        self.children, self.posterior = list[Node](), new()
        self.continuation = defaultdict[str, Posterior](new)
        # of the children that each agent made here, and of these with all below
        self.generate: dict[str, Posterior] = {agent: new() for agent in self.agents}
        self.of_agent: dict[str, Posterior] = {agent: new() for agent in self.agents}

    def choose(self, rng: Random) -> "str | Node":
        """Draw the agent that generates here, or the child to continue in."""
        stack, weight = self.strategy == "stack", self.decay ** len(self.children)
        agent = thompson(rng, self.of_agent.items()) if stack else ""
        # those at which, or below which, a node can be generated
        children = [child for child in self.children if child.agents and agent in ("", child.agent)]
        wider = {agent: self.generate[agent]} if stack else self.generate
        deeper = {None: self.continuation[agent]} if children else {}
        if stack and not children:
            return agent
        weights: dict[str | None, float] = dict.fromkeys(wider, weight)
        chosen = thompson(rng, [*wider.items(), *deeper.items()], weights)
        return thompson(rng, ((child, child.posterior) for child in children)) if chosen is None else chosen

    def add(self, child: "Node") -> None:
        self.children.append(child)
        child.posterior.observe(child.score)
        self.tried(child.agent, child.score)

    def tried(self, agent: str, score: float) -> None:
        """Record the score of an agent's attempt to make a child here, successful or not, on every edge above too."""
        self.generate[agent].observe(score)
        self.of_agent[agent].observe(score)
        node = self
        while node.parent is not None:
            node.posterior.observe(score)
            node.parent.continuation[node.agent if self.strategy == "stack" else ""].observe(score)
            node.parent.of_agent[node.agent].observe(score)
            node = node.parent
