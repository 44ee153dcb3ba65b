"""Posteriors of tree search against textbook formulas, and the choices of one node's bandit."""

import math
import statistics
from collections import Counter
from random import Random
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marl_verl_mars2.bandit import PRIORS, Beta, Node, Normal, Posterior, Prior, Strategy, thompson

BOTH_PRIORS = pytest.mark.parametrize("prior", ["normal", "beta"])
BOTH_STRATEGIES = pytest.mark.parametrize("strategy", ["bandit", "stack"])
DRAWS, STATED = 20_000, [0.3, 0.9, 0.5, 0.45, 0.7, 0.8]


def normal_of(scores: list[float]) -> tuple[float, float, float, float]:
    """(m, kappa, nu, tau2) after n scores at once: Murphy, Advanced Topics, 3.4.3.3, from NIG(0, 1, 1, 0.1)."""
    n = len(scores)
    if n == 0:
        return 0.0, 1.0, 1.0, 0.1
    mean = sum(scores) / n
    scatter = sum((score - mean) ** 2 for score in scores)
    kappa, nu = 1.0 + n, 1.0 + n
    return n * mean / kappa, kappa, nu, (0.1 + scatter + n / kappa * mean**2) / nu


def beta_of(scores: list[float]) -> tuple[float, float]:
    """(a, b) after n scores at once, from Beta(0.5, 0.5)."""
    clipped = [min(1.0, max(0.0, score)) for score in scores]
    return 0.5 + sum(clipped), 0.5 + len(clipped) - sum(clipped)


def seen(prior: Prior, scores: list[float]) -> Posterior:
    posterior = PRIORS[prior]()
    for score in scores:
        posterior.observe(score)
    return posterior


@BOTH_PRIORS
@given(scores=st.lists(st.floats(-20, 20), max_size=30))
@settings(max_examples=40, deadline=None)
def test_score_by_score_comes_to_the_formula_for_all_scores_at_once(prior: Prior, scores: list[float]) -> None:
    posterior = seen(prior, scores)
    if isinstance(posterior, Normal):
        assert (posterior.m, posterior.kappa, posterior.nu, posterior.tau2) == pytest.approx(
            normal_of(scores), rel=1e-9, abs=1e-9
        )
    else:
        assert isinstance(posterior, Beta)
        assert (posterior.a, posterior.b) == pytest.approx(beta_of(scores), rel=1e-9, abs=1e-9)


def test_normal_draws_have_the_moments_and_quantiles_of_the_mean_s_student_t() -> None:
    m, kappa, nu, tau2 = normal_of(STATED)
    assert nu == 7
    rng, posterior = Random(1), seen("normal", STATED)
    draws = [posterior.draw(rng) for _ in range(DRAWS)]
    # var t(7) = 7/5; of a draw of the next score it would be (kappa + 1) = 8 times as much
    variance = tau2 / kappa * nu / (nu - 2)
    assert statistics.mean(draws) == pytest.approx(m, abs=5 * math.sqrt(variance / DRAWS))
    assert statistics.variance(draws) == pytest.approx(variance, rel=0.1)
    scale = math.sqrt(tau2 / kappa)
    for quantile, below in ((-1.895, 0.05), (-0.711, 0.25), (0.0, 0.5), (0.711, 0.75), (1.895, 0.95)):  # of t(7)
        assert sum(draw < m + scale * quantile for draw in draws) / DRAWS == pytest.approx(below, abs=0.015)


def test_beta_draws_have_the_moments_of_the_mean() -> None:
    a, b = beta_of(STATED)
    rng, posterior = Random(3), seen("beta", STATED)
    draws = [posterior.draw(rng) for _ in range(DRAWS)]
    variance = a * b / ((a + b) ** 2 * (a + b + 1))
    assert statistics.mean(draws) == pytest.approx(a / (a + b), abs=5 * math.sqrt(variance / DRAWS))
    assert statistics.variance(draws) == pytest.approx(variance, rel=0.1)
    assert all(0 <= draw <= 1 for draw in draws)


class Fixed(Normal):
    """Always draws its m."""

    def draw(self, rng: Random) -> float:
        return self.m


@BOTH_PRIORS
def test_thompson_takes_each_arm_as_often_as_it_is_the_best(prior: Prior) -> None:
    rng = Random(4)
    equal = [(arm, seen(prior, STATED)) for arm in "abc"]
    counts = Counter(thompson(rng, equal) for _ in range(3000))
    assert all(count == pytest.approx(1000, abs=130) for count in counts.values())
    better = [("a", seen(prior, [0.1] * 8)), ("b", seen(prior, [0.9] * 8))]
    assert Counter(thompson(rng, better) for _ in range(1000))["b"] > 950


def node(strategy: Strategy, prior: Prior, agents: str = "ab", decay: float = 1.0) -> Node:
    return Node(agents, strategy, prior, decay, cast(Any, None))


def add(parent: Node, agent: str, score: float, agents: str = "ab") -> Node:
    """A child at which `agents` can generate."""
    child = Node(agents, parent.strategy, parent.prior, 1.0, parent.state, parent, agent, None, score)
    parent.add(child)
    return child


def grown(strategy: Strategy, prior: Prior) -> Node:
    """Children 0 (of a, 0.2), 1 (of b, 0.7), 2 (of a, 0.4), and scores below: 0.6 and 0.1 in 0, 0.9 in 1."""
    top = node(strategy, prior)
    first, second, _ = add(top, "a", 0.2), add(top, "b", 0.7), add(top, "a", 0.4, agents="")
    for parent, score in ((first, 0.6), (second, 0.9), (first, 0.1)):
        add(parent, "a", score)
    return top


@BOTH_PRIORS
@BOTH_STRATEGIES
def test_children_in_which_nothing_can_be_generated_are_never_drawn(strategy: Strategy, prior: Prior) -> None:
    rng, top = Random(5), grown(strategy, prior)
    assert {top.choose(rng) for _ in range(2000)} == {"a", "b", *top.children[:2]}
    closed = node(strategy, prior, "a")
    add(closed, "a", 1.0, agents="")
    assert {closed.choose(rng) for _ in range(200)} == {"a"}


def fixed(values: dict[str, float]) -> Any:
    return {agent: Fixed(m) for agent, m in values.items()}


def fix(top: Any, generate: dict[str, float], children: list[float], continuation: dict[str, float]) -> None:
    """Make every draw certain."""
    top.generate, top.continuation = fixed(generate), fixed(continuation)
    for child, value in zip(top.children, children, strict=True):
        child.posterior = Fixed(value)


def test_bandit_decides_agent_and_depth_in_one_draw_and_then_among_all_children() -> None:
    rng, top = Random(0), grown("bandit", "normal")
    fix(top, {"a": 0.3, "b": 0.5}, [0.9, 0.1, 5.0], {"": 0.4})
    assert top.choose(rng) == "b"
    fix(top, {"a": 0.3, "b": 0.5}, [0.1, 0.9, 5.0], {"": 0.6})
    assert top.choose(rng) is top.children[1]  # the best child, 2, is closed


def test_stack_draws_the_agent_first_and_then_within_what_that_agent_made() -> None:
    rng, top = Random(0), grown("stack", "normal")
    top.of_agent = fixed({"a": 1.0, "b": 0.0})
    fix(top, {"a": 0.3, "b": 9.0}, [0.1, 0.9, 5.0], {"a": 0.2, "b": 9.0})
    assert top.choose(rng) == "a"
    fix(top, {"a": 0.3, "b": 9.0}, [0.1, 0.9, 5.0], {"a": 0.4, "b": -9.0})
    assert top.choose(rng) is top.children[0]  # 1 is b's, 2 is closed


@BOTH_STRATEGIES
def test_decay_turns_a_wide_node_deeper(strategy: Strategy) -> None:
    def wider(decay: float, children: int) -> int:
        top = node(strategy, "normal", "a", decay)
        for _ in range(children):
            add(top, "a", 0.5)
        return sum(isinstance(top.choose(Random(seed)), str) for seed in range(400))

    assert wider(1.0, 0) == wider(0.5, 0) == 400  # a node without a child can only be widened
    assert wider(1.0, 12) > wider(0.98, 12) > wider(0.9, 12) > wider(0.5, 12)
