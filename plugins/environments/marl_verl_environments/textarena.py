"""Games of TextArena as task sets. They run offline, and depend on their seed and the moves only."""

import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import Any

from marl_verl.errors import MarlError, check_known, user_error
from marl_verl_environments.seats import Game, OwnRandom, Seated, SeatedTasks, required

_JUDGED = ("Debate", "GuessWho", "ScenarioPlanning", "TwentyQuestions")
_BROKEN = ("Bandit", "CharacterConclave", "Checkers", "FifteenPuzzle", "ScorableGames", "Tak")
REFUSED = {
    **dict.fromkeys(_JUDGED, "it asks a language model of a web service"),
    **dict.fromkeys(_BROKEN, "it fails in textarena 0.7.4, at the start or when it is won, or rewards regret (Bandit)"),
}
"""Game -> why it cannot be used."""
_SUGGESTED = re.compile(r"'(\[[^\[\]\n']{1,20}\])'")
LOST = -1.0  # the outcome of a player whose reward TextArena sets to a text: it mixes up two arguments of a loss


class TextArenaGame:
    """A game in progress. MarlError if the game does not have this number of seats."""

    def __init__(self, env: str, arguments: Mapping[str, Any], seed: int, seats: int) -> None:
        self._name, self._seats, self._random, self._over = env, seats, OwnRandom(seed), False
        self._rewards: Mapping[int, Any] = {}
        with self._random.used(), redirect_stdout(io.StringIO()):  # some games print their search for a puzzle
            self._env = _made(env, arguments)
            with user_error(f"textarena '{env}' cannot be played by {seats} agents", Exception):
                self._env.reset(num_players=seats, seed=seed)
        self._refused: str | None = None
        self._watch()
        if hasattr(self._env.state, "elimination_order"):
            self._env.state.elimination_order = _Eliminated(seats)
        self._next = self._seen()

    def to_move(self) -> Mapping[int, str]:
        return {} if self._over else self._next

    def play(self, moves: Mapping[int, str]) -> Mapping[int, str]:
        ((seat, text),) = moves.items()
        self._refused = None
        with self._random.used(), _offline():
            try:
                self._over, _ = self._env.step(action=text)
                if self._over:
                    self._rewards = self._env.close()[0] or {}
            except _NobodyLeft:
                self._over, self._rewards = True, dict.fromkeys(range(self._seats), LOST)
        if not self._over:
            self._next = self._seen()
            eliminated = getattr(self._env.state, "elimination_order", ())
            if next(iter(self._next)) in eliminated:  # some games ask an eliminated player again, forever
                self._over, self._rewards = True, dict.fromkeys(eliminated, LOST)
        return {} if self._refused is None else {seat: self._refused}

    def choices(self, seat: int) -> tuple[list[str], list[str]]:
        """The moves in quoted brackets, such as '[4]', of the last line of the observation that has any, and of all
        lines. MarlError for a game that suggests none."""
        lines = [moves for line in self._next[seat].splitlines() if (moves := _SUGGESTED.findall(line))]
        if not lines:
            raise MarlError(f"textarena '{self._name}' suggests no moves, which a tiny model would learn from")
        return lines[-1], [move for line in lines for move in line]

    def outcomes(self) -> list[float]:
        rewards = [self._rewards.get(seat, 0.0) for seat in range(self._seats)]
        return [float(reward) if isinstance(reward, int | float) else LOST for reward in rewards]

    def _seen(self) -> dict[int, str]:
        with self._random.used():
            player, text = self._env.get_observation()
        return {player: text}

    def _watch(self) -> None:
        """Record what the game says of an illegal move: it tells the player only."""
        refuse = self._env.state.set_invalid_move

        def recorded(*args: Any, **kwargs: Any) -> Any:
            texts = (value for value in (kwargs.get("reason"), *args) if value and isinstance(value, str))
            self._refused = next(texts, "illegal")
            return refuse(*args, **kwargs)

        self._env.state.set_invalid_move = recorded


class TextArenaTasks(SeatedTasks):
    """One game of TextArena, e.g. TicTacToe-v0. The tasks are its seeds; an outcome is the reward of a player."""

    @staticmethod
    def game(env: str, arguments: Mapping[str, Any], seed: int) -> Game:
        """Of two players, or of one if the game does not have two."""
        try:
            return TextArenaGame(env, arguments, seed, 2)
        except MarlError:
            return TextArenaGame(env, arguments, seed, 1)


class TextArena(Seated):
    """Agents play a game of TextArena, which judges illegal moves: in most games a player may try again once, then it
    loses."""

    game = TextArenaGame


def _made(name: str, arguments: Mapping[str, Any]) -> Any:
    """A new environment. MarlError with the reason if there is none, or if it does not run offline."""
    with _offline():
        registry = required("textarena").envs.registration
        check_known("marl.task.options.env", name, registry.ENV_REGISTRY)
        game = str(registry.ENV_REGISTRY[name].entry_point).split(".")[2]  # TicTacToe of TicTacToe-v0-train
        if game in REFUSED:
            raise MarlError(f"textarena '{name}' cannot be used: {REFUSED[game]}")
        return registry.make(name, **arguments)


class _NobodyLeft(Exception):
    """All players were eliminated by illegal moves; TextArena would search for the next one forever."""


class _Eliminated(list[int]):
    def __init__(self, seats: int) -> None:
        super().__init__()
        self._seats = seats

    def __contains__(self, seat: object) -> bool:
        if len(set(self)) == self._seats:
            raise _NobodyLeft
        return super().__contains__(seat)


@contextmanager
def _offline() -> Iterator[None]:
    """Downloads of NLTK's data, which TextArena starts in imports and constructors, do nothing in this block."""
    nltk = required("nltk")
    before, nltk.download = nltk.download, lambda *args, **kwargs: False
    try:
        yield
    finally:
        nltk.download = before
