"""Games for chat models: a state, its text, its legal moves, and why a move is refused; and task sets of games."""

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from marl_verl import Task, TaskSet
from marl_verl.errors import user_error
from marl_verl.tasks import Split, distinct, held_out
from marl_verl_games import log

Cell = tuple[int, int]
"""(row, column), from 0."""
G = TypeVar("G", bound="Game")
STEPS = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
"""Move -> (rows down, columns to the right)."""
HELD_OUT = 10  # one task in ten


def apart(cell: Cell, other: Cell) -> int:
    """The distance of two cells in moves, without walls."""
    return abs(cell[0] - other[0]) + abs(cell[1] - other[1])


class Game(Protocol):
    """A state of a game; it does not change. By default its moves are steps of one cell."""

    rules: ClassVar[str]  # as agents see them
    example: ClassVar[str] = '["U", "R"]'  # a list of moves in the right format
    most_moves: ClassVar[int] = 10_000  # after so many, refused ones included, the game is over
    only_moves: ClassVar[bool] = False  # whether a program's list with anything else than moves counts as none

    @classmethod
    def of(cls, task: Task) -> Self: ...  # the first state

    @property
    def solved(self) -> bool: ...

    @property
    def potential(self) -> float:
        """How near the goal is, for the reward of moves."""

    def drawn(self) -> str: ...

    def legal(self) -> str:
        return ", ".join(move for move in STEPS if not isinstance(self.after(move), str))

    def move(self, word: str) -> str | None:
        """The move that a word means, or None."""
        return word if word in STEPS else None

    def after(self, move: str) -> Self | str:
        """The state after a move of the game, or why it is refused."""


@dataclass(frozen=True)
class Played(Generic[G]):
    """The result of a sequence of moves."""

    game: G
    made: int = 0  # number of moves since the start of the game, refused ones included
    refused: tuple[tuple[str, str], ...] = ()  # (move, why) of the refused moves of the sequence

    @property
    def over(self) -> bool:
        """Whether the game is solved, or has had all of its moves."""
        return self.game.solved or self.made >= self.game.most_moves


def play(before: Played[G], moves: Sequence[str]) -> Played[G]:
    """Make moves, also after a refused one; those after the end of the game are not made."""
    now = Played(before.game, before.made)
    for move in moves:
        if now.over:
            break
        state = now.game.after(meant) if (meant := now.game.move(move)) else "no move of this game"
        if isinstance(state, str):
            now = Played(now.game, now.made + 1, (*now.refused, (move, state)))
        else:
            now = Played(state, now.made + 1, now.refused)
    return now


def executed(game: G, lines: Sequence[log.Line]) -> Played[G]:
    """The result of all moves of the lines, from the first state; plans are ignored."""
    return play(Played(game), [move for line in lines if line.verb == "moves" for move in line.moves or ()])


def outcome(game: G, lines: Sequence[log.Line]) -> G:
    """The last state, with a plan on the last line executed as moves."""
    before = executed(game, lines[:-1])
    return play(before, lines[-1].moves or ()).game if lines else before.game


class GameTasks(TaskSet):
    """Tasks of a game; an answer is a `log`, with score 1 if its moves solve the game."""

    quick = True
    game: ClassVar[type[Game]]

    def score(self, task: Task, answer: Any) -> float:
        """1 where the moves solve the game, else 0. MarlError: the answer is no log."""
        return float(outcome(self.game.of(task), log.read(answer)).solved)


def puzzles(
    task_of: Callable[[Any], Task | None], generator: str, count: int, split: Split, seed: int, **options: int
) -> list[Task]:
    """`count` different tasks of the entries of a generator of reasoning-gym. A puzzle is in one split only, whatever
    the seed. MarlError if there are fewer, or if the generator refuses the options."""
    import reasoning_gym  # seconds

    name = generator.removeprefix("mini_")
    first = random.Random(f"{name} {split} {seed}").randrange(1 << 29)
    with user_error(f"reasoning-gym '{generator}' refuses marl.task.options", AssertionError):
        entries = reasoning_gym.create_dataset(generator, seed=first, **options)
    tasks = (task_of(entries[number]) for number in itertools.count())
    drawn = (task if task and held_out(task.id, HELD_OUT) == (split == "test") else None for task in tasks)
    return distinct(lambda: next(drawn), count, split, name)
