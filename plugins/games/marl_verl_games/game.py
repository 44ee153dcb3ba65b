"""Games for chat models: a state, its text, its legal moves, and why a move is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from marl_verl_games import log


class Game:
    """A state of a game; it does not change.

    Attributes:
        rules: the rules, as agents see them.
        example: a list of moves in the right format.
    """

    rules: ClassVar[str]
    example: ClassVar[str]

    @property
    def solved(self) -> bool:
        """Whether the goal is reached."""
        raise NotImplementedError

    def drawn(self) -> str:
        """The state as text."""
        raise NotImplementedError

    def legal(self) -> str:
        """The legal moves as text."""
        raise NotImplementedError

    def move(self, word: str) -> str | None:
        """The move that a word means, or None."""
        raise NotImplementedError

    def after(self, move: str) -> Game | str:
        """The state after a move, or why it is refused."""
        raise NotImplementedError


@dataclass(frozen=True)
class Played:
    """The result of a sequence of moves: the state, the moves that changed it, and (move, why) of the refused ones."""

    game: Game
    taken: tuple[str, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()


def play(game: Game, moves: Sequence[str]) -> Played:
    """Make moves, also after a refused one; those after the game is solved are not made."""
    taken: list[str] = []
    refused: list[tuple[str, str]] = []
    for move in moves:
        if game.solved:
            break
        found = game.after(move)
        if isinstance(found, str):
            refused.append((move, found))
        else:
            game = found
            taken.append(move)
    return Played(game, tuple(taken), tuple(refused))


def executed(game: Game, lines: Sequence[log.Line]) -> Game:
    """The state after all moves of the lines; plans are ignored."""
    return play(game, [move for line in lines if line.verb == "moves" for move in line.moves or ()]).game


def outcome(game: Game, lines: Sequence[log.Line]) -> Game:
    """As `executed`, with a plan on the last line executed as moves."""
    before = executed(game, lines[:-1])
    return play(before, lines[-1].moves or ()).game if lines else before
