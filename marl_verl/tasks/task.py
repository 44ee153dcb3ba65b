"""A task, the splits of a task set, and statistics of outcomes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Split = Literal["train", "test"]
SPLITS: tuple[Split, ...] = ("train", "test")
SET = "set"
"""Name in a task's `data` of the public set that it is from: held-out success is also reported for each."""


@dataclass(frozen=True)
class Task:
    """One problem.

    Attributes:
        id: unique in its task set and stable between runs (it identifies held-out tasks).
        prompt: the problem as text; a workflow may instead show an agent a part of `data`.
        data: all other data for workflow and scoring, as JSON values.
    """

    id: str
    prompt: str
    data: dict[str, Any] = field(default_factory=dict)


def winner(outcomes: Mapping[str, float]) -> str | None:
    """The side with the highest outcome; None if several have it, or without outcomes."""
    best = [side for side, outcome in outcomes.items() if outcome == max(outcomes.values())]
    return best[0] if len(best) == 1 else None


def side_statistics(episodes: Sequence[Mapping[str, float]]) -> dict[str, dict[str, Any]]:
    """Side -> `outcome`, the mean of its scores, and `wins`, the share of `episodes` (side -> score) that it won."""
    winners = [winner(outcomes) for outcomes in episodes]
    statistics: dict[str, dict[str, Any]] = {}
    for side in dict.fromkeys(side for outcomes in episodes for side in outcomes):
        scores = [outcomes[side] for outcomes in episodes if side in outcomes]
        statistics[side] = {"outcome": sum(scores) / len(scores), "wins": winners.count(side) / len(episodes)}
    return statistics


def draws(episodes: Sequence[Mapping[str, float]]) -> float:
    """The share of episodes without a winner; there must be an episode."""
    return sum(winner(outcomes) is None for outcomes in episodes) / len(episodes)


def wilson(successes: float, tasks: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's 95 % confidence interval of a share, (low, high) in [0, 1]; (0, 1) without tasks.

    (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)    (Wilson 1927)
    """
    if tasks == 0:
        return 0.0, 1.0
    share = successes / tasks
    middle = share + z * z / (2 * tasks)
    spread = z * math.sqrt(share * (1 - share) / tasks + z * z / (4 * tasks * tasks))
    scale = 1 + z * z / tasks
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)
