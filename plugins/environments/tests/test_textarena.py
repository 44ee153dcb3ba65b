"""TextArena's games: which run offline, that they depend on seed and moves only, and how a team plays them."""

from __future__ import annotations

import random
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("textarena")

from marl_verl_environments.textarena import SEATS, TextArena, TextArenaGame, TextArenaTasks
from marl_verl_testing import ScriptedPolicy, check_sampler, check_task, check_workflow, shown
from marl_verl_testing.hash_seeds import elsewhere

from marl_verl import Task, plugins
from marl_verl.algo.sampling import Independent
from marl_verl.errors import MarlError
from marl_verl.options import build

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
TICTACTOE = Task("t", "t", {"env": "TicTacToe-v0", "arguments": {}, "seed": 3})
WINS = ScriptedPolicy({"cross": ["[0]", "[1]", "[2]"], "nought": ["[3]", "[4]"]})
LOSES = ScriptedPolicy({"cross": ["[0]", "[1]"], "nought": ["[0]", "nothing"]})
MAY_RUN = ("refused: its source needs Python 3.12", "refused: it needs data of NLTK")  # where these are installed
long = pytest.mark.long


def of_each_game() -> dict[str, str]:
    """Package of a game -> its first environment."""
    from textarena.envs.registration import ENV_REGISTRY

    found: dict[str, str] = {}
    for name, spec in ENV_REGISTRY.items():
        found.setdefault(str(spec.entry_point).split(".")[2], name)
    return found


def transcript(name: str, moves: int = 12) -> list[Any]:
    """Seats, then observations, illegal moves and outcomes of random moves, many of which the game suggests."""
    for seats in SEATS:
        try:
            game = TextArenaGame(name, {}, 5, seats)
        except MarlError as error:
            if "cannot be played by" not in str(error):
                raise
            continue
        rng, found = random.Random(f"moves {name}"), list[Any]([seats])
        while len(found) <= moves and (seen := game.to_move()):
            ((seat, text),) = seen.items()
            assert text
            suggested = re.findall(r"\[[^\[\]\n]{1,20}\]", text)
            move = rng.choice(suggested) if suggested and rng.random() < 0.8 else rng.choice(["[0]", "[1 2]", "pass"])
            try:
                found.append([seat, text, move, dict(game.play({seat: move})), game.outcomes()])
            except RuntimeError as error:  # a mistake in the game
                return [*found, str(error)]
        return found
    raise AssertionError(f"{name} takes no number of seats up to 7")


def reason_of(name: str) -> str:
    """Why an environment is refused, without its name; "" if it is not."""
    try:
        TextArenaTasks(env=name)
    except MarlError as error:
        return str(error).partition("cannot be used: ")[2]
    return ""


def test_the_readme_says_for_every_game_whether_it_runs_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a game used the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setenv("OPENROUTER_API_KEY", "none")
    table = dict(re.findall(r"^\| (.+?) \| (.+?) \|$", README.partition("## TextArena")[2], re.MULTILINE))
    told = {game: seats for seats, games in table.items() for game in games.split(", ")}
    found = {}
    for game, name in of_each_game().items():
        if reason := reason_of(name):
            found[game] = next((key for key in table if key.removeprefix("refused: ") in reason), reason)
        elif told.get(game) in MAY_RUN:
            found[game] = told[game]
        else:
            seats = transcript(name)[0]
            found[game] = f"{seats} seats" if seats > 1 else "1 seat"
    assert found == {game: told.get(game, "not in the README") for game in found}


def test_a_game_depends_on_seed_and_moves_only() -> None:
    """Not on the random numbers of the process, which it leaves as they were, nor on the order of sets."""
    names = ["Poker-v0", "LiarsDice-v0", "Blackjack-v0", "FrozenLake-v0-random", "Secretary-v0", "Taboo-v0"]
    random.seed(1)
    before = random.getstate()
    first = [transcript(name) for name in names]
    assert random.getstate() == before
    random.seed(2)
    assert [transcript(name) for name in names] == first
    assert (
        TextArenaGame("FrozenLake-v0-random", {}, 6, 1).to_move()
        != TextArenaGame("FrozenLake-v0-random", {}, 5, 1).to_move()
    )


@long
def test_no_game_depends_on_the_order_of_sets() -> None:
    names = [name for name in of_each_game().values() if not reason_of(name)]
    assert len(names) > 60
    for setting, there in elsewhere(lambda: [transcript(name) for name in names], "TextArena"):
        for name, other in zip(names, there, strict=True):
            assert transcript(name) == other, f"{name} is another game with {setting}"


def test_the_kit_accepts_the_task_set() -> None:
    def answers(task: Task) -> list[Any]:
        return [
            {"outcomes": outcomes, "seats": ["a", "b"], "finished": True} for outcomes in ([1, -1], [0, 0], [-1, 1])
        ]

    check_task(TextArenaTasks(env="TicTacToe-v0", side=0), answers, scores=(-1, 1))
    both = TextArenaTasks(env="TicTacToe-v0")
    assert [both.score(TICTACTOE, answer) for answer in answers(TICTACTOE)] == [0, 0, 0]
    assert TextArenaTasks(env="TicTacToe-v0", side=1).score(TICTACTOE, answers(TICTACTOE)[0]) == -1


def test_demonstrations_of_tiny_models() -> None:
    tasks = TextArenaTasks(env="TicTacToe-v0-train")
    pairs = tasks.demonstrations("cross", 60, 3, 1.0)
    assert pairs == tasks.demonstrations("cross", 60, 3, 1.0) != tasks.demonstrations("cross", 60, 4, 1.0)
    assert len(pairs) == 60
    assert all(f"'{move}'" in text.partition("Available Moves:")[2] for text, move in pairs)
    careless = tasks.demonstrations("cross", 200, 3, 0.0)
    assert any(f"'{move}'" not in text.partition("Available Moves:")[2] for text, move in careless)
    assert {word for pair in pairs for word in " ".join(pair).split()} <= set(tasks.vocabulary())
    with pytest.raises(MarlError, match="'FrozenLake-v0-train' suggests no moves"):
        TextArenaTasks(env="FrozenLake-v0-train").demonstrations("cross", 1, 3, 1.0)


def test_two_agents_play_and_each_sees_its_own_observation() -> None:
    run = check_workflow(TextArena(), TICTACTOE, WINS)
    assert run.answer == {"outcomes": [1.0, -1.0], "seats": ["cross", "nought"], "finished": True}
    assert "You are Player 0" in shown(run.turns[0][0])
    assert "You are Player 1" in shown(run.turns[1][0])
    assert [proposed["outcomes"] for proposed in run.proposals] == [[0, 0]] * 4 + [[1, -1]]
    swapped = check_workflow(TextArena(seats=("nought", "cross")), TICTACTOE, LOSES)
    assert swapped.answer["seats"] == ["nought", "cross"]


def test_an_illegal_move_is_marked_and_judged_by_the_game() -> None:
    run = check_workflow(TextArena(), TICTACTOE, LOSES)
    assert run.answer["outcomes"] == [1, -1]
    assert list(run.invalid) == [("nought", "0"), ("nought", "1")]
    assert "[0]" not in run.invalid["nought", "1"]


@pytest.mark.parametrize("sampler", [Independent(episodes=2), "greedy-tree"])
def test_samplers_replay_a_game(sampler: Any) -> None:
    if isinstance(sampler, str):
        sampler = plugins.load().get("samplers", sampler)()

    def choose(act: Any, session: int, candidate: int) -> str:
        return f"[{(act.turn * 3 + session + (candidate if isinstance(candidate, int) else 0)) % 9}]"

    policy = ScriptedPolicy({"cross": choose, "nought": choose})
    check_sampler(sampler, TextArena(moves=3), TICTACTOE, policy, tasks=TextArenaTasks(env="TicTacToe-v0", side=0))


def test_a_game_ends_when_it_would_ask_an_eliminated_player() -> None:
    game = TextArenaGame("PublicGoodsGame-v0", {}, 1, 2)
    for _ in range(60):
        if not (seen := game.to_move()):
            break
        game.play({next(iter(seen)): "nothing"})
    assert not game.to_move()
    assert game.outcomes() == [-1, 0]


def inner(game: TextArenaGame) -> Any:
    env = game._env
    while hasattr(env, "env"):
        env = env.env
    return env


def ended(name: str, choose: Callable[[Any, int], str]) -> float:
    """The outcome of a game of one seat in which a player that sees the hidden state chooses the moves."""
    game = TextArenaGame(name, {}, 7, 1)
    for number in range(60):
        if not game.to_move():
            break
        game.play({0: choose(inner(game), number)})
    assert not game.to_move()
    return game.outcomes()[0]


def extreme(pick: Any) -> Callable[[Any, int], str]:
    return lambda env, _: f"[{pick(means := env.state.game_state['ground_truth'], key=means.get)}]"


def drawn(best: bool) -> Callable[[Any, int], str]:
    def choose(env: Any, _: int) -> str:
        draws, shown = env.state.game_state["draws"], env.state.game_state["current_idx"] - 1
        return "[accept]" if (draws[shown] == max(draws)) == best else "[continue]"

    return choose


def slide(env: Any, number: int) -> str:
    env.board = [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12], [13, 14, None, 15]]
    return "[left]"


def hanoi(disks: int, start: str, spare: str, end: str) -> list[str]:
    if not disks:
        return []
    return [*hanoi(disks - 1, start, end, spare), f"[{start} {end}]", *hanoi(disks - 1, spare, start, end)]


@pytest.mark.parametrize(
    ("name", "best", "worst"),
    [
        ("Bandit-v0", extreme(max), extreme(min)),
        ("Bandit-v0-hard", extreme(max), extreme(min)),
        ("FifteenPuzzle-v0", slide, lambda env, number: "no move"),
        ("Secretary-v0", drawn(best=True), drawn(best=False)),
        ("ThreeCardMonte-v0", lambda env, _: f"[{env.ball_pos}]", lambda env, _: f"[{(env.ball_pos + 1) % 3}]"),
        (
            "TowerOfHanoi-v0",
            lambda env, n: hanoi(env.num_disks, "A", "B", "C")[n],
            lambda env, n: ("[A B]", "[B A]")[n % 2],
        ),
        (
            "Mastermind-v0",
            lambda env, _: f"[{' '.join(map(str, env.state.game_state['secret_code']))}]",
            lambda env, _: "no move",
        ),
    ],
)
def test_the_best_player_has_more_than_the_worst(name: str, best: Any, worst: Any) -> None:
    assert ended(name, best) == 1.0
    assert ended(name, worst) < 1.0


def test_the_regret_of_a_button_is_negative() -> None:
    assert -1.0 < ended("Bandit-v0", extreme(min)) < 0.0
    assert ended("Bandit-v0", lambda env, _: "no button") == -1.0


def test_a_game_that_is_won_ends() -> None:
    game = TextArenaGame("Tak-v0", {}, 3, 2)
    inner(game)._check_win = lambda player: player == 0
    game.play({0: "[place () {(0,0): [F0]}]"})
    assert (game.to_move(), game.outcomes()) == ({}, [1.0, -1.0])
    for name in ("Golf-v0", "Briscola-v0"):
        with pytest.raises(MarlError, match=f"'{name}' cannot be played by 3 agents: it fails at the end"):
            TextArenaGame(name, {}, 3, 3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"env": "TicTacTo-v0"}, "unknown marl.task.options.env 'TicTacTo-v0': did you mean 'TicTacToe-v0'"),
        ({"env": "Debate-v0"}, "it asks a language model of a web service"),
        ({"env": "TicTacToe-v0-raw"}, "Use 'TicTacToe-v0'"),
        ({"env": "TicTacToe-v0", "arguments": {"size": 4}}, "arguments {'size': 4}"),
    ],
)
def test_an_environment_that_does_not_run_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(MarlError, match=re.escape(said)):
        build(TextArenaTasks, options, "marl.task.options")


@pytest.mark.parametrize(("agents", "seats", "said"), [(3, (), "be played by 3 agents"), (2, ("a0", "b"), "unknown")])
def test_a_team_that_does_not_fit_the_game_is_refused(agents: int, seats: tuple[str, ...], said: str) -> None:
    with pytest.raises(Exception, match=said):
        check_workflow(
            TextArena(seats=seats), TICTACTOE, ScriptedPolicy({f"a{number}": "[0]" for number in range(agents)})
        )
