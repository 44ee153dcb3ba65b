"""Conjugate posteriors of a mean score, updated one score at a time.

Normal scores, with a normal-inverse-gamma prior NIG(m, kappa, nu, tau2):

    sigma^2 ~ nu tau2 / chi^2(nu),   mu | sigma^2 ~ N(m, sigma^2 / kappa),   x | mu, sigma^2 ~ N(mu, sigma^2)

    a score x:  nu'    = nu + 1            tau2' = (nu tau2 + kappa / kappa' (x - m)^2) / nu'
                kappa' = kappa + 1         m'    = (kappa m + x) / kappa'

so that mu alone is Student's t: (mu - m) / sqrt(tau2 / kappa) ~ t(nu). Source: Murphy, Probabilistic Machine Learning:
Advanced Topics, 3.4.3.3, where the same is written for n scores at once.

Scores in [0, 1], with a Beta(a, b) prior on their mean p, each as a fractional coin flip x:

    a score x:  a' = a + x,   b' = b + 1 - x,   p ~ Beta(a, b)

A draw is one of the *mean* (mu, or p), not of the next score. Thompson sampling requires this: the variance
of an arm's scores is no reason to try it again, only the uncertainty of its mean. The authors' code (treequest) also
draws the mean. The priors are theirs: NIG(0, 1, 1, 0.1), and Jeffreys' Beta(0.5, 0.5).
"""

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Literal, TypeVar

Prior = Literal["normal", "beta"]
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
        chi2 = max(2 * rng.gammavariate(self.nu / 2, 1), sys.float_info.min)  # one draw in 2^53 is 0
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


def posterior(prior: Prior) -> Posterior:
    """A posterior without scores: the prior."""
    return Normal() if prior == "normal" else Beta()


def thompson(rng: Random, arms: Iterable[tuple[K, Posterior]], weights: Mapping[K, float] = {}) -> K:
    """Thompson sampling: draw from each posterior, in order, and take the arm whose draw is highest.

    `weights`: arm -> a factor <= 1 of its draws; a draw below 0 is divided by it.
    """
    drawn = [(posterior.draw(rng), weights.get(arm, 1.0), arm) for arm, posterior in arms]
    return max(drawn, key=lambda item: item[0] * item[1] if item[0] > 0 else item[0] / item[1])[2]
