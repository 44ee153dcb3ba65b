"""Role rewards of Sokoban and Sudoku, for an agent's moves or planned moves from the team's state.

`sokoban`, with the values of AT-GRPO's public code (arXiv 2510.11062):

    r = + 1 for each push of a box onto a goal - 0.5 for each push off a goal
        - 0.01 * [moves taken] - 0.05 * [moves refused]
        + 10 if the board is solved
        - 5 for the last act of an episode that did not solve it
        - 2 if no moves can be parsed

`sudoku`, with our own values: c(s) is the number of own digits that are right minus those that are wrong, E the number
of empty cells of the puzzle.

    r = (c(s') - c(s)) / E - 0.1 * [moves refused]
        + 1 if solved, - 1 for the last act of an episode that did not solve it, - 2 if no moves can be parsed

s is the state before the act, s' the state after these moves; a planner's moves count as if executed exactly.
`sokoban-program` and `sudoku-program` have -1 in place of -2, for the program of a tool caller that prints no moves.
The team reward, 1 if solved, is a separate component.
"""

from __future__ import annotations

from typing import TypeVar

from marl_verl import Task
from marl_verl.episode import Episode, Turn
from marl_verl.tasks import quick
from marl_verl_games import log
from marl_verl_games.game import Game, Played, executed, play
from marl_verl_games.plan_path_rewards import FAILED_PROGRAM, NO_MOVES
from marl_verl_games.sokoban import Sokoban
from marl_verl_games.sudoku import Sudoku

G = TypeVar("G", bound=Game)
STEP, REFUSED, ON, OFF, WIN, LOSS = -0.01, -0.05, 1.0, -0.5, 10.0, -5.0
SUDOKU_REFUSED, SUDOKU_WIN, SUDOKU_LOSS = -0.1, 1.0, -1.0


@quick
def sokoban(task: Task, turn: Turn, episode: Episode) -> float:
    """The reward of one act in Sokoban; MarlError as `log.line_of`."""
    return _sokoban(task, turn, episode, NO_MOVES)


@quick
def sokoban_program(task: Task, turn: Turn, episode: Episode) -> float:
    """The reward of a tool caller's program in Sokoban; MarlError as `log.line_of`."""
    return _sokoban(task, turn, episode, FAILED_PROGRAM)


@quick
def sudoku(task: Task, turn: Turn, episode: Episode) -> float:
    """The reward of one act in Sudoku; MarlError as `log.line_of`."""
    return _sudoku(task, turn, episode, NO_MOVES)


@quick
def sudoku_program(task: Task, turn: Turn, episode: Episode) -> float:
    """The reward of a tool caller's program in Sudoku; MarlError as `log.line_of`."""
    return _sudoku(task, turn, episode, FAILED_PROGRAM)


def _sokoban(task: Task, turn: Turn, episode: Episode, nothing: float) -> float:
    before, played, last = _act(Sokoban.of(task.data["rows"]), turn, episode)
    reward = nothing if played is None else STEP * len(played.taken) + REFUSED * len(played.refused)
    state = before
    for move in played.taken if played is not None else ():
        on, found = state.on_goals, state.after(move)
        assert isinstance(found, Sokoban)
        state = found
        reward += ON * max(state.on_goals - on, 0) + OFF * max(on - state.on_goals, 0)
    return reward + (WIN if state.solved and played is not None else LOSS if last else 0.0)


def _sudoku(task: Task, turn: Turn, episode: Episode, nothing: float) -> float:
    before, played, last = _act(Sudoku.of(task.data), turn, episode)
    if played is None:
        return nothing + (SUDOKU_LOSS if last else 0.0)
    after = played.game
    assert isinstance(after, Sudoku)
    reward = (after.right - before.right) / before.empty + SUDOKU_REFUSED * len(played.refused)
    return reward + (SUDOKU_WIN if after.solved else SUDOKU_LOSS if last else 0.0)


def _act(first: G, turn: Turn, episode: Episode) -> tuple[G, Played | None, bool]:
    """The state before an act, what its moves did (None without moves), and whether it ended the episode."""
    lines, number = log.line_of(turn, episode)
    before = executed(first, lines[:number])
    assert isinstance(before, type(first))
    moves = lines[number].moves
    over = episode.finished and number == len(lines) - 1
    return before, None if moves is None else play(before, moves), over
