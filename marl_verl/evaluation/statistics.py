"""avg@k and pass@k of sampled episodes, and confidence intervals over tasks.

With c of n episodes of a task solved, the probability that at least one of k episodes drawn without replacement is
solved:

    pass@k = 1 - C(n - c, k) / C(n, k) = 1 - prod_{i = n-c+1}^{n} (1 - k / i)        (Chen et al. 2021, eq. 1)

It is an unbiased estimate of 1 - (1 - p)^k. avg@n is c / n, which is pass@1. Both are means over tasks; the percentile
bootstrap (Efron and Tibshirani 1993, section 13.3) gives the middle 95 % of the means of tasks drawn with replacement.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from marl_verl.tasks.base import wilson

if TYPE_CHECKING:
    from marl_verl.backend.protocol import Report

RESAMPLES = 10_000
LEVEL = 0.95


def pass_at_k(episodes: int, solved: int, k: int) -> float:
    """Unbiased estimate of pass@k in [0, 1] for one task with `solved` of `episodes` episodes solved (eq. 1)."""
    if episodes - solved < k:  # every draw contains a solved episode
        return 1.0
    return float(1.0 - np.prod(1.0 - k / np.arange(episodes - solved + 1, episodes + 1)))


def interval(values: Sequence[float], seed: int) -> tuple[float, float]:
    """Bootstrap 95 % confidence interval (low, high) of the mean over tasks; values in [0, 1].

    If all values are equal, the bootstrap interval is a point. Then return Wilson's interval of a proportion, which is
    conservative: of all variables in [0, 1] with the same mean, a binary one has the largest variance.
    """
    kinds, counts = np.unique(np.asarray(values, dtype=np.float64), return_counts=True)
    tasks = int(counts.sum())
    if len(kinds) < 2:
        return wilson(float(kinds.sum()) * tasks, tasks)
    # drawing tasks with replacement is equivalent to drawing the count of each distinct value
    drawn = np.random.default_rng(seed).multinomial(tasks, counts / tasks, size=RESAMPLES)
    means = drawn @ kinds / tasks
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def sampled_scores(solved: Sequence[int], episodes: int, ks: Sequence[int], seed: int) -> dict[str, object]:
    """avg@n and each pass@k with intervals, by their keys in a result; `solved` has the solved episodes per task."""
    scores = {f"avg@{episodes}": [count / episodes for count in solved]}
    scores.update({f"pass@{k}": [pass_at_k(episodes, count, k) for count in solved] for k in ks})
    result: dict[str, object] = {}
    for name, values in scores.items():
        result |= {name: float(np.mean(values)), f"{name}_interval": interval(values, seed)}
    return result


def agent_metrics(reports: "Sequence[Report]", agent: str) -> dict[str, Any]:
    """Means of an agent: rewards as in a validation, tokens and shares of its turns (None without turns), turns per
    episode."""
    turns = [turn for report in reports for turn in report.turns if turn.agent == agent]
    episodes = sum(len(report.successes) for report in reports)
    rewards: defaultdict[str, list[float]] = defaultdict(list)
    for episode in (episode for report in reports for episode in report.rewards):
        for component, value in episode.get(agent, {}).items():
            rewards[component].append(value)
    fields = {"response_length": "tokens", "read_length": "read", "invalid": "invalid", "cut_off": "cut_off"}
    return {
        "rewards": {component: float(np.mean(values)) for component, values in sorted(rewards.items())},
        **{name: _mean([getattr(turn, field) for turn in turns]) for name, field in fields.items()},
        "turns": len(turns) / episodes if episodes else None,
        "tokens": sum(turn.tokens for turn in turns),
    }


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def counts(reports: "Sequence[Report]") -> dict[str, Any]:
    """Failed attempts, by reason, and the tokens sampled in all episodes; those of failed attempts are unknown."""
    failures = Counter(failure.reason for report in reports for failure in report.failures)
    return {
        "failed": failures.total(),
        "failed_reasons": dict(sorted(failures.items())),
        "tokens": sum(turn.tokens for report in reports for turn in report.turns),
    }
