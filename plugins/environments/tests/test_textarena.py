"""TextArena's games: which run offline, that they depend on seed and moves only, and how a team plays them."""

import itertools
import random
import re
from typing import Any

import pytest

pytest.importorskip("textarena")

from marl_verl_environments.pettingzoo import PettingZooTasks
from marl_verl_environments.textarena import TextArena, TextArenaGame, TextArenaTasks
from marl_verl_testing import ScriptedPolicy, check_task, check_workflow, shown

from marl_verl import Task
from marl_verl.errors import MarlError
from marl_verl.options import build

TICTACTOE = Task("t", "t", {"env": "TicTacToe-v0", "arguments": {}, "seed": 3})
WINS = ScriptedPolicy({"cross": ["[0]", "[1]", "[2]"], "nought": ["[3]", "[4]"]})
LOSES = ScriptedPolicy({"cross": ["[0]", "[1]"], "nought": ["[0]", "nothing"]})


def transcript(name: str, seats: int) -> list[Any]:
    """Observations, illegal moves and outcomes of random moves, many of which the game suggests."""
    game, rng, played = TextArenaGame(name, {}, 5, seats), random.Random(f"moves {name}"), list[Any]()
    while len(played) < 12 and (seen := game.to_move()):
        ((seat, text),) = seen.items()
        suggested = re.findall(r"\[[^\[\]\n]{1,20}\]", text)
        move = rng.choice(suggested) if suggested and rng.random() < 0.8 else rng.choice(["[0]", "[1 2]", "pass"])
        played.append([seat, text, move, dict(game.play({seat: move})), game.outcomes()])
    return played


def test_a_game_depends_on_seed_and_moves_only() -> None:
    """Not on the random numbers of the process, which it leaves as they were, nor on the order of sets."""
    games = [("Poker-v0", 2), ("LiarsDice-v0", 2), ("FrozenLake-v0-random", 1), ("Secretary-v0", 1), ("Taboo-v0", 4)]
    random.seed(1)
    before, first = random.getstate(), list(itertools.starmap(transcript, games))
    assert random.getstate() == before
    random.seed(2)
    assert list(itertools.starmap(transcript, games)) == first
    lakes = [TextArenaGame("FrozenLake-v0-random", {}, seed, 1).to_move() for seed in (5, 6)]
    assert lakes[0] != lakes[1]


def test_the_kit_accepts_the_task_set() -> None:
    answers = [{"outcomes": each, "seats": ["a", "b"], "finished": True} for each in ([1, -1], [0, 0], [-1, 1])]
    check_task(TextArenaTasks(env="TicTacToe-v0", side=0), lambda task: answers, scores=(-1, 1))
    assert [TextArenaTasks(env="TicTacToe-v0").score(TICTACTOE, answer) for answer in answers] == [0, 0, 0]
    assert TextArenaTasks(env="TicTacToe-v0", side=1).score(TICTACTOE, answers[0]) == -1


def test_two_agents_play_and_each_sees_its_own_observation() -> None:
    run = check_workflow(TextArena(), TICTACTOE, WINS)
    assert run.answer == {"outcomes": [1.0, -1.0], "seats": ["cross", "nought"], "finished": True}
    assert "You are Player 0" in shown(run.turns[0][0])
    assert "You are Player 1" in shown(run.turns[1][0])
    assert [proposed["outcomes"] for proposed in run.proposals] == [[0, 0]] * 4 + [[1, -1]]
    assert check_workflow(TextArena(seats=("nought", "cross")), TICTACTOE, LOSES).answer["seats"] == ["nought", "cross"]


def test_an_illegal_move_is_marked_and_judged_by_the_game() -> None:
    run = check_workflow(TextArena(), TICTACTOE, LOSES)
    assert (run.answer["outcomes"], list(run.invalid)) == ([1, -1], [("nought", "0"), ("nought", "1")])
    assert "[0]" not in run.invalid["nought", "1"]


def test_a_game_ends_when_it_would_ask_an_eliminated_player() -> None:
    game = TextArenaGame("PublicGoodsGame-v0", {}, 1, 2)
    for _ in range(60):
        if not (seen := game.to_move()):
            break
        game.play({next(iter(seen)): "nothing"})
    assert not game.to_move()
    assert game.outcomes() == [-1, 0]


def test_sides_are_scored_by_their_seats() -> None:
    tasks = build(TextArenaTasks, {"env": "TicTacToe-v0", "sides": ["red", "blue", "red"]}, "marl.task.options")
    score = tasks.score(TICTACTOE, {"outcomes": [1, -1, 0]})
    assert score == {"red": 0.5, "blue": -1}
    assert set(score) == set(tasks.sides)  # which are compared with the team's before a run
    with pytest.raises(ValueError, match="shorter"):
        tasks.score(TICTACTOE, {"outcomes": [1, -1]})
    for kind, env in ((TextArenaTasks, "TicTacToe-v0"), (PettingZooTasks, "pettingzoo.classic.rps_v2")):
        with pytest.raises(MarlError, match="`side` and `sides` exclude each other"):
            kind(env=env, side=0, sides=("red", "blue"))
