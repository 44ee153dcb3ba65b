"""Games of TextArena with opponents: legal moves of all players to the end, and the outcomes of sides."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("textarena")

from marl_verl_environments.pettingzoo import PettingZooTasks
from marl_verl_environments.textarena import TextArenaGame, TextArenaTasks

from marl_verl import Task
from marl_verl.errors import MarlError
from marl_verl.options import build

TASK = Task("t", "t")


def kuhn_poker(seat: int, text: str) -> str:
    return "[check]" if "'[check]'" in text.splitlines()[-1] else "[call]"


def mafia(seat: int, text: str) -> str:
    targets = re.findall(r"\[(\d+)\]", text.splitlines()[-1])
    return f"[{targets[0]}]" if targets else "I know nothing."


@pytest.mark.parametrize(
    ("name", "move", "sides", "private"),
    [
        ("KuhnPoker-v0", kuhn_poker, "one two", r"Your card is: '\w'"),
        ("SecretMafia-v0", mafia, "a b c d e f", r"Your role: \w+"),
    ],
)
def test_legal_moves_end_a_game_with_an_outcome_for_each_side(name: str, move: Any, sides: str, private: str) -> None:
    tasks = TextArenaTasks(env=name, sides=tuple(sides.split()))
    game, seen = TextArenaGame(name, {}, 5, len(tasks.sides)), dict[int, str]()
    while now := game.to_move():
        ((seat, text),) = now.items()
        seen.setdefault(seat, text)
        assert game.play({seat: move(seat, text)}) == {}
    found = game.outcomes()
    assert set(found) == {-1, 1}
    score = tasks.score(TASK, {"outcomes": found})
    assert score == {side: found[tasks.sides.index(side)] for side in tasks.sides}  # seats of a side win together
    # what a player sees of its own differs
    assert len({tuple(re.findall(private, text, re.MULTILINE)) for text in seen.values()}) > 1


def test_sides_are_scored_by_their_seats() -> None:
    tasks = build(TextArenaTasks, {"env": "TicTacToe-v0", "sides": ["red", "blue", "red"]}, "marl.task.options")
    score = tasks.score(TASK, {"outcomes": [1, -1, 0]})
    assert score == {"red": 0.5, "blue": -1}
    assert set(score) == set(tasks.sides)  # which are compared with the team's before a run
    with pytest.raises(MarlError, match="sides names 3 seats, but the game has 2: name the side of each seat"):
        tasks.score(TASK, {"outcomes": [1, -1]})
    for kind, env in ((TextArenaTasks, "TicTacToe-v0"), (PettingZooTasks, "pettingzoo.classic.rps_v2")):
        with pytest.raises(MarlError, match="`side` and `sides` exclude each other"):
            kind(env=env, side=0, sides=("red", "blue"))
