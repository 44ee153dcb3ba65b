"""The Shapley value of a cooperative game: the marginal contribution of each player."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import factorial


def coalitions(players: Sequence[str]) -> list[frozenset[str]]:
    """All 2^n sets of players, ordered by size."""
    return [frozenset(chosen) for size in range(len(players) + 1) for chosen in combinations(players, size)]


def shapley(players: Sequence[str], value: Mapping[frozenset[str], float]) -> dict[str, float]:
    """phi_i = sum over S without i of |S|! (n - |S| - 1)! / n! * (v(S + i) - v(S)).

    The only division of v(N) - v(empty) that is efficient, symmetric, linear, and gives 0 to null players.
    Source: Shapley, 1953; for two players phi_a = (v(a) - v(0) + v(ab) - v(b)) / 2.

    Args:
        players: n different names.
        value: v of all 2^n coalitions.
    """
    n = len(players)
    weight = [factorial(size) * factorial(n - size - 1) / factorial(n) for size in range(n)]
    return {
        player: sum(
            weight[len(chosen)] * (value[chosen | {player}] - value[chosen])
            for chosen in coalitions([other for other in players if other != player])
        )
        for player in players
    }
