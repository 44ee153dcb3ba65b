"""Cross-play: who plays whom with which weights, what is refused, and the numbers of the matrix."""

import io
import math
import types
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marl_verl_evaluation import run as evaluate
from marl_verl_evaluation.cross_play import differences, pair, pairing_result
from marl_verl_evaluation.elo import SCALE, WIDTH, ratings
from marl_verl_evaluation.request import Assignment, Options, Pairing, Request
from marl_verl_evaluation.results import results
from rich.console import Console

from marl_verl.backend.protocol import Report
from marl_verl.errors import MarlError
from marl_verl.run.progress import Display
from marl_verl.team import TeamConfig, read_team
from plugins.evaluation.tests.test_evaluation import Trainer


def _team(agents: Mapping[str, tuple[str, str | None]], frozen: tuple[str, ...] = ()) -> TeamConfig:
    """agent -> (policy, side)."""
    policies = {policy: {"model": {"path": "/m"}, "frozen": policy in frozen} for policy, _ in agents.values()}
    named = {name: {"policy": policy, "side": side} for name, (policy, side) in agents.items()}
    parts = {kind: {"name": "x"} for kind in ("task", "workflow", "algorithm")}
    return read_team({"agents": named, "policies": policies, **parts}, evaluation=True)


def _names(pairing: Pairing) -> dict[str, str]:
    return {agent: used.policy for agent, used in pairing.assignments.items()}


def _pairing(row: str, column: str, **policies: str) -> Pairing:
    return Pairing({agent: Assignment(name, "trained", name) for agent, name in policies.items()}, row, column)


SELF = {"one": ("player", "red"), "two": ("player", "blue")}


def test_every_step_plays_every_step_on_both_sides() -> None:
    crossed = pair(_team(SELF), (0, 20))
    assert crossed.sides == ("red", "blue")
    assert [(pairing.row, pairing.column, _names(pairing)) for pairing in crossed.pairings] == [
        (f"player@{row}", f"player@{column}", {"one": f"player-step-{row}", "two": f"player-step-{column}"})
        for row in (0, 20)
        for column in (0, 20)
    ]
    assert crossed.policies == {
        "player-step-0": Assignment("player", "untrained", "player-step-0"),
        "player-step-20": Assignment("player", "trained", "player-step-20", 20),
    }


def test_a_team_that_cannot_be_paired_is_refused() -> None:
    for agents, message in (
        ({"one": ("p", None)}, "needs a team of two sides, but the team has none. Set marl.agents.NAME.side"),
        ({**SELF, "also": ("q", "red")}, "side 'red' is played by several: 'player' and 'q'"),
    ):
        with pytest.raises(MarlError, match=message):
            pair(_team(agents), (0, 20))


GAMES = [[{"red": 2.0, "blue": -2.0}, {"red": 0.0, "blue": 0.0}], [{"red": -1.0, "blue": 1.0}], []]


def test_the_numbers_of_a_pairing_are_those_of_its_games() -> None:
    """Two tasks with means 1 and -1: standard deviation sqrt(2), standard error 1. The third task's games failed."""
    found = pairing_result(_pairing("a", "b"), ("red", "blue"), GAMES)
    assert (found["games"], found["wins"], found["draws"], found["losses"]) == (3, 1, 1, 1)
    assert found["outcome"] == {"red": 0, "blue": 0}
    assert found["outcome_interval"]["red"] == pytest.approx((-1.96, 1.96))


class _Trainer(Trainer):
    """The stronger policy wins by its step."""

    def __init__(self) -> None:
        super().__init__()
        self.config.marl.validation.options.episodes = 1
        self.data, self.step, self.rollouts = types.SimpleNamespace(held_out=["0", "1"]), 20, self
        self.seeds: list[int] = []

    def assign(self, policies: dict[str, str]) -> None:
        self.policies = policies

    def sample(self, tasks: Any, step: int, validate: bool) -> Any:
        assert validate
        assert all(task["sampled"] for task in tasks)
        self.seeds.append(step)
        red, blue = (int(self.policies[agent][1:]) for agent in ("one", "two"))
        outcome = {"red": float(red - blue), "blue": float(blue - red)}
        return [Report("u", "t", outcomes=[outcome], rewards=[{"one": {"team": outcome["red"]}}]) for _ in tasks]


def test_a_cross_play_plays_every_pair_with_seeds_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, events = _Trainer(), []
    monkeypatch.setattr(evaluate, "emit", lambda event, **values: events.append((values["done"], values["tasks"])))
    steps = (0, 20)
    pairings = tuple(_pairing(f"p@{i}", f"p@{j}", one=f"s{i}", two=f"s{j}") for i in steps for j in steps)
    request = Request(20, pairings, Options(episodes=1), sides=("red", "blue"))
    result = evaluate.play_pairings(trainer, request)  # type: ignore[arg-type]
    assert (trainer.seeds, trainer.checked) == ([0, 1, 2, 3], 8)
    assert events == [(0, 8), (2, 8), (2, 8), (4, 8), (4, 8), (6, 8), (6, 8), (8, 8)]
    assert [each["outcome"]["red"] for each in result["pairings"]] == [0, -20, 20, 0]
    assert result["elo"]["p@0"]["rating"] == 0
    assert result["elo"]["p@20"]["rating"] > 100
    assert result["elo_first_side"]["rating"] == pytest.approx(0, abs=1e-6)
    text = io.StringIO()
    results({**result, "settings": {}, "seconds": 1.0}, Display(Console(file=text, width=120)))
    for part in ("red \\ blue", "-20.000", "p@20", "side red is worth"):
        assert part in text.getvalue()


# Partners: the team of the last step, beside one agent of each step, with the same seeds


def test_beside_a_partner_of_each_step_the_rest_of_the_team_is_that_of_the_last() -> None:
    paired = pair(_team({"left": ("p", None), "right": ("q", None), "also": ("q", None)}), (5, 20), "right")
    assert [(p.row, p.column) for p in paired.pairings] == [("team@20", "right@5"), ("team@20", "right@20")]
    assert [_names(pairing) for pairing in paired.pairings] == [
        {"left": "p-step-20", "right": f"q-step-{step}", "also": "q-step-20"} for step in (5, 20)
    ]
    assert set(paired.policies) == {"p-step-20", "q-step-20", "q-step-5"}
    with pytest.raises(MarlError, match="its policy is not trained"):
        pair(_team({"left": ("p", None), "right": ("q", None)}, ("q",)), (5, 20), "right")


@given(st.lists(st.tuples(*[st.lists(st.integers(-5, 5), max_size=3)] * 2), min_size=1, max_size=5))
def test_a_difference_is_the_mean_over_tasks_of_differences_of_means(tasks: list[tuple[list[int], list[int]]]) -> None:
    rewards = [[[{"left": {"team": float(v)}, "right": {}} for v in pair[i]] for pair in tasks] for i in (0, 1)]
    pairings = [_pairing("team@2", f"right@{step}") for step in (1, 2)]
    measured = differences(pairings, rewards)["pairings"][0]["difference"]
    gains = [np.mean(after) - np.mean(before) for before, after in tasks if before and after]
    assert set(measured) == ({"left, team"} if gains else set())
    if len(gains) > 1:
        error = 1.96 * np.std(gains, ddof=1) / len(gains) ** 0.5
        assert measured["left, team"]["mean"] == pytest.approx(np.mean(gains), abs=1e-9)
        assert measured["left, team"]["interval"] == pytest.approx(
            (np.mean(gains) - error, np.mean(gains) + error), abs=1e-9
        )


def test_partners_are_played_with_the_same_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = _Trainer()
    monkeypatch.setattr(evaluate, "emit", lambda event, **values: None)
    pairings = tuple(_pairing("team@20", f"two@{step}", one="s20", two=f"s{step}") for step in (0, 20))
    result = evaluate.play_pairings(trainer, Request(20, pairings, Options(episodes=1)))  # type: ignore[arg-type]
    assert trainer.seeds == [20, 20]
    assert result["pairings"][0]["difference"]["one, team"] == {"mean": -20.0, "interval": (-20.0, -20.0)}
    text = io.StringIO()
    results({**result, "settings": {}, "seconds": 1.0}, Display(Console(file=text, width=120)))
    assert "-20.000 +-0.000" in text.getvalue()


# Elo ratings: values worked out by hand, the equations of the maximum, and what the games do not determine


def test_two_players_differ_by_the_odds_of_their_games() -> None:
    """a wins 2.5 of 3; with a drawn game P = 3/4, so 10^(-(R_b - R_a)/400) = 3, and the information is n p (1 - p)."""
    found = ratings({("a", "b"): (2.5, 3)})
    low, high = found["elo"]["b"]["interval"]
    assert found["elo"]["b"]["rating"] == pytest.approx(-400 * math.log10(3))
    assert (high - low) / 2 == pytest.approx(WIDTH * SCALE / math.sqrt(3 / 4))
    assert found["elo"]["a"] == {"rating": 0, "interval": (0, 0)}
    assert "elo_first_side" not in found


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
    rating = {name: estimate["rating"] for name, estimate in found["elo"].items()}
    surplus = dict.fromkeys(rating, 0.0)
    total = 0.0
    for (row, column), (points, count) in games.items():
        logit = (rating[row] - rating[column] + found["elo_first_side"]["rating"]) / SCALE
        more = points + 0.5 - (count + 1) / (1 + np.exp(-logit))
        surplus[row] += more
        surplus[column] -= more
        total += more
    assert [*surplus.values(), total] == pytest.approx([0] * (players + 1), abs=1e-4)
