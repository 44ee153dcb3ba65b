"""avg@k and pass@k of sampled episodes, and confidence intervals over tasks.

With c of n episodes of a task solved, the probability that at least one of k episodes drawn without replacement is
solved:

    pass@k = 1 - C(n - c, k) / C(n, k) = 1 - prod_{i = n-c+1}^{n} (1 - k / i)        (Chen et al. 2021, eq. 1)

It is an unbiased estimate of 1 - (1 - p)^k. avg@n is c / n, which is pass@1. Both are means over tasks; the percentile
bootstrap (Efron and Tibshirani 1993, section 13.3) gives the middle 95 % of the means of tasks drawn with replacement.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from marl_verl.episode.codec import decode_episode
from marl_verl.trainer.report import wilson

RESAMPLES = 10_000
LEVEL = 0.95

CUT_OFF = "length"
"""The `stop_reason` of an action that ended at its length limit."""


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


class Tally:
    """Counts over stored episodes, by agent, and over failed attempts, by reason."""

    def __init__(self, agents: Iterable[str]) -> None:
        self.episodes = 0
        self.failures: Counter[str] = Counter()
        self._counts: dict[str, Counter[str]] = {name: Counter() for name in agents}
        # (agent, component) -> its mean over the agent's turns, of every episode in which it acted
        self._rewards: defaultdict[tuple[str, str], list[float]] = defaultdict(list)

    def add(self, lines: Iterable[str]) -> None:
        for line in lines:
            data = json.loads(line)
            if "failure" in data:
                self.failures[data["failure"]] += 1
            else:
                self._episode(data)

    def _episode(self, data: Mapping[str, Any]) -> None:
        self.episodes += 1
        rewards: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        for turn in decode_episode(data).turns:
            counts = self._counts[turn.agent]
            counts["turns"] += 1
            counts["tokens"] += turn.length
            counts["invalid"] += turn.invalid is not None
            counts["cut_off"] += turn.action.stop_reason == CUT_OFF
            for component, value in turn.components.items():
                rewards[turn.agent, component].append(value)
        for key, values in rewards.items():
            self._rewards[key].append(sum(values) / len(values))

    @property
    def tokens(self) -> int:
        """Tokens sampled in all episodes; those of failed attempts are unknown."""
        return sum(counts["tokens"] for counts in self._counts.values())

    def metrics(self, agent: str) -> dict[str, Any]:
        """Means of an agent: tokens per turn, shares of turns, turns per episode, and rewards as in a validation.

        The length and the shares are None if the agent has no turns.
        """
        counts, rewards = self._counts[agent], sorted(self._rewards.items())
        per_turn = {"response_length": "tokens", "invalid": "invalid", "cut_off": "cut_off"}
        turns = counts["turns"]
        return {
            "rewards": {component: sum(means) / len(means) for (name, component), means in rewards if name == agent},
            **{name: counts[count] / turns if turns else None for name, count in per_turn.items()},
            "turns": turns / self.episodes if self.episodes else None,
            "tokens": counts["tokens"],
        }
