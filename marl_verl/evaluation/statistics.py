"""avg@k and pass@k of sampled sessions, and confidence intervals over tasks.

With c of n sessions of a task solved, the chance that one of k sessions drawn without replacement is solved:

    pass@k = 1 - C(n - c, k) / C(n, k) = 1 - prod_{i = n-c+1}^{n} (1 - k / i)        (Chen et al. 2021, eq. 1)

It is an unbiased estimate of 1 - (1 - p)^k. avg@n is c / n, which is pass@1. Both are means over tasks; the percentile
bootstrap (Efron and Tibshirani 1993, section 13.3) gives the middle 95 % of the means of tasks drawn with replacement.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from marl_verl.trainer.report import wilson

RESAMPLES = 10_000
LEVEL = 0.95


def pass_at_k(sessions: int, solved: int, k: int) -> float:
    """The chance, in [0, 1], that one of k (1 to n) sessions of a task is solved, with c solved of n sampled."""
    if not 1 <= k <= sessions or not 0 <= solved <= sessions:
        raise ValueError(f"pass@k needs 1 <= k <= n and 0 <= c <= n, got n={sessions}, c={solved}, k={k}")
    if sessions - solved < k:  # whichever are drawn, a solved one is among them
        return 1.0
    return float(1.0 - np.prod(1.0 - k / np.arange(sessions - solved + 1, sessions + 1)))


def interval(values: Sequence[float], seed: int) -> tuple[float, float]:
    """The 95 % confidence interval of the mean over tasks, (low, high) in [0, 1], by seeded draws.

    Where all tasks have one value the bootstrap gives a point. Then it is Wilson's interval of a share, which covers,
    because no variable in [0, 1] varies more than one that is 0 or 1 with the same mean.

    Args:
        values: one per task, each in [0, 1].
    """
    kinds, counts = np.unique(np.asarray(values, dtype=np.float64), return_counts=True)
    tasks = int(counts.sum())
    if len(kinds) < 2:
        return wilson(float(kinds.sum()) * tasks, tasks)
    # tasks with the same value are alike: drawing tasks is drawing how often each value occurs
    drawn = np.random.default_rng(seed).multinomial(tasks, counts / tasks, size=RESAMPLES)
    means = drawn @ kinds / tasks
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def sampled_scores(solved: Sequence[int], sessions: int, ks: Sequence[int], seed: int) -> dict[str, object]:
    """avg@n and each pass@k with intervals, by their names in a result, from how many sessions each task solved."""
    scores = {f"avg@{sessions}": [count / sessions for count in solved]}
    scores.update({f"pass@{k}": [pass_at_k(sessions, count, k) for count in solved] for k in ks})
    found: dict[str, object] = {}
    for name, values in scores.items():
        found[name] = float(np.mean(values))
        found[f"{name}_interval"] = interval(values, seed)
    return found
