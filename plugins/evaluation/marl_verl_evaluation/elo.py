"""Elo ratings by maximum likelihood: the model of Bradley and Terry (1952), with an advantage of the row's side.

    P(row beats column) = 1 / (1 + 10^(-(R_row - R_column + h) / 400))          a draw is half a win and half a loss

h is what playing the row's side is worth, as playing white is in chess. It is estimated if the same players play both
sides, and 0 otherwise: with players of one side only, ratings and h cannot be told apart.

This is a logistic regression of the points on the players, whose log-likelihood is concave; Newton's method finds its
maximum. Every pairing is given `PRIOR` drawn games, because the rating of a player that has won all games is infinite
without them. Intervals are R +- 1.96 standard errors, from the inverse of the Fisher information.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from marl_verl.algo.advantage.columns import FloatArray

SCALE = 400 / math.log(10)
PRIOR = 1.0
STEPS = 100
WIDTH = 1.96  # standard errors


def interval(means: Sequence[float]) -> tuple[float, float] | None:
    """The mean of the tasks -+ 1.96 standard errors; None with fewer than two tasks."""
    if len(means) < 2:
        return None
    middle, error = float(np.mean(means)), float(np.std(means, ddof=1)) / len(means) ** 0.5
    return middle - WIDTH * error, middle + WIDTH * error


def ratings(games: Mapping[tuple[str, str], tuple[float, int]]) -> dict[str, Any]:
    """Rate players. `games`: (player of the row, of the column) -> (its wins and half of the draws; games).

    Returns `elo`: player -> its rating relative to the first one, whose rating is 0; and `elo_first_side`, what playing
    the row's side is worth, if rows and columns have the same players. Each is a `rating` in Elo points and its 95 %
    `interval`. ValueError: the games do not determine the ratings, because they do not connect two players.
    """
    rows, columns = dict.fromkeys(row for row, _ in games), dict.fromkeys(column for _, column in games)
    players, both_sides = list(rows | columns), rows.keys() == columns.keys()
    design = np.zeros((len(games), len(players) + 1))  # R_row - R_column + h
    for pairing, (row, column) in enumerate(games):
        design[pairing, players.index(row)] += 1
        design[pairing, players.index(column)] -= 1
    design[:, -1] = both_sides
    points, count = np.array(list(games.values()), dtype=np.float64).T
    values, errors = _maximum(design[:, 1:] if both_sides else design[:, 1:-1], points + PRIOR / 2, count + PRIOR)
    estimates = zip(values, values - WIDTH * errors, values + WIDTH * errors, strict=True)
    elo: list[dict[str, Any]] = [{"rating": 0.0, "interval": (0.0, 0.0)}]
    for value, low, high in estimates:
        elo.append({"rating": float(value) * SCALE, "interval": (float(low) * SCALE, float(high) * SCALE)})
    numbers: dict[str, Any] = {"elo": dict(zip(players, elo, strict=False))}
    return numbers | {"elo_first_side": elo[-1]} if both_sides else numbers


def _maximum(design: FloatArray, points: FloatArray, count: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(coefficients, standard errors) of the logistic regression of `points` of `count` games on `design`."""

    def likelihood(beta: FloatArray) -> float:
        logits = design @ beta
        return float(points @ logits - count @ np.logaddexp(0, logits))

    beta = np.zeros(design.shape[1])
    for _ in range(STEPS):
        expected = 1 / (1 + np.exp(-design @ beta))
        information = design.T @ (design * (count * expected * (1 - expected))[:, None])
        if np.linalg.matrix_rank(information) < len(beta):
            break
        step = np.linalg.solve(information, design.T @ (points - count * expected))
        if np.abs(step).max(initial=0.0) < 1e-9:
            return beta, np.sqrt(np.diag(np.linalg.inv(information)))
        while likelihood(beta + step) < likelihood(beta) and np.abs(step).max() > 1e-9:
            step /= 2  # Newton's step may be too long far from the maximum
        beta = beta + step
    raise ValueError("the ratings are not determined by the games")
