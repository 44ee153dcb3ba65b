"""Elo ratings: values worked out by hand, the equations of the maximum, and what the games do not determine."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marl_verl_leagues.elo import SCALE, WIDTH, ratings


def test_two_players_differ_by_the_odds_of_their_games() -> None:
    """a wins 3 of 4: P = 3/4, so 10^(-(R_b - R_a)/400) = 3. The information of n games is n p (1 - p) = 3/4."""
    found = ratings({("a", "b"): (3, 4)}, prior=0)
    value, low, high = found.players["b"]
    assert value == pytest.approx(-400 * math.log10(3))
    assert (high - low) / 2 == pytest.approx(WIDTH * SCALE / math.sqrt(3 / 4))
    assert found.players["a"] == (0, 0, 0)
    assert found.advantage is None


def test_draws_are_half_and_the_prior_is_one_drawn_game() -> None:
    """Two draws and a win of three games are 2 points of 3; with the prior 2.5 of 4."""
    assert ratings({("a", "b"): (2, 3)}, prior=0).players["b"][0] == pytest.approx(-400 * math.log10(2))
    assert ratings({("a", "b"): (2, 3)}).players["b"][0] == pytest.approx(-400 * math.log10(2.5 / 1.5))
    assert ratings({("a", "b"): (4, 4)}).players["b"][0] == pytest.approx(-400 * math.log10(4.5 / 0.5))


def test_the_side_and_the_player_are_told_apart() -> None:
    """The row's odds are 2 for equal players, 6 if a plays the row against b, and 2/3 the other way round: the side is
    worth a factor of 2, and player a one of 3."""
    odds = {("a", "a"): 2, ("b", "b"): 2, ("a", "b"): 6, ("b", "a"): 2 / 3}
    games = {pair: (100 * each / (1 + each), 100) for pair, each in odds.items()}
    found = ratings(games, prior=0)
    assert found.players["b"][0] == pytest.approx(-400 * math.log10(3))
    assert found.advantage is not None
    assert found.advantage[0] == pytest.approx(400 * math.log10(2))


def test_players_of_one_side_are_compared_through_their_opponents() -> None:
    """Against c, the odds of a are 3 and those of b are 1; no player plays both sides."""
    found = ratings({("a", "c"): (3, 4), ("b", "c"): (2, 4)}, prior=0)
    assert {name: value[0] for name, value in found.players.items()} == pytest.approx(
        {"a": 0, "b": -400 * math.log10(3), "c": -400 * math.log10(3)}
    )
    assert found.advantage is None


def test_games_that_determine_no_rating() -> None:
    with pytest.raises(ValueError, match="not determined"):
        ratings({("a", "b"): (4, 4)}, prior=0)
    with pytest.raises(ValueError, match="not determined"):
        ratings({("a", "b"): (1, 2), ("c", "d"): (1, 2)})


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 5), st.randoms(use_true_random=False))
def test_at_the_maximum_everyone_has_the_points_that_the_ratings_expect(players: int, random: object) -> None:
    draw = random.choice  # type: ignore[attr-defined]
    games = {}
    for row in map(str, range(players)):
        for column in map(str, range(players)):
            count = draw((0, 1, 10, 1000))
            games[row, column] = (draw((0, count / 2, count)), count)
    found = ratings(games)
    assert found.advantage is not None
    surplus = dict.fromkeys(found.players, 0.0)
    total = 0.0
    for (row, column), (points, count) in games.items():
        logit = (found.players[row][0] - found.players[column][0] + found.advantage[0]) / SCALE
        more = points + 0.5 - (count + 1) / (1 + np.exp(-logit))
        surplus[row] += more
        surplus[column] -= more
        total += more
    assert [*surplus.values(), total] == pytest.approx([0] * (players + 1), abs=1e-4)
