"""Role rewards of Plan-Path, Sokoban and Sudoku: what an agent's moves are worth, and what the team's are.

    r = own + shared

own is the reward of the agent's moves or planned moves from the team's state, shared that of the moves of the same turn
that move the team. So the reward of the agent that moves counts twice. A plan is judged on a copy of the state, before
the team moves. In a greedy tree nobody has moved yet when a plan is compared with the other candidates: shared is 0.

The reward of moves is a sum over those until the end of the game, Phi the potential of a state:

                   Plan-Path                Sokoban                      Sudoku
    move           -0.01                    -0.01                        0
    refused move   -0.1                     -0.05                        -0.1
    shaping        0.99 Phi(s') - Phi(s)    0.1 (0.99 Phi(s') - Phi(s))  Phi(s') - Phi(s)
    Phi            -distance to the goal    -distances of the boxes      (right - wrong digits) / empty cells
    box            -                        +1 onto a goal, -0.5 off     -
    solved         +1, +0.5 if shortest     +10                          +1
    limit          -1 at 10,000 moves       -5 at 200 moves              -

Distances ignore walls. "Shortest": all moves since the start, refused ones too, are as many as a shortest walk's. An
answer without a list, or with an empty one, has own -2 and shared 0; with a list of other things than words, own -1
and shared -1. A program (`plan-path-program` and its like) has own -2 without a list, 0 with an empty one.

Source: AT-GRPO's public code (arXiv 2510.11062) for Plan-Path and Sokoban; the values of Sudoku are ours. The team
reward, 1 if solved, is a component of its own: alpha 0 gives the authors' reward.
"""

from dataclasses import dataclass

from marl_verl import Task
from marl_verl.episode import Episode, Turn
from marl_verl.tasks import quick
from marl_verl_games import log
from marl_verl_games.board import PathGame
from marl_verl_games.game import Game, Played, executed, play
from marl_verl_games.game_workflows import game_of
from marl_verl_games.sokoban import Sokoban
from marl_verl_games.sudoku import Sudoku

NO_LIST, NO_WORDS = -2.0, -1.0
ON, OFF = 1.0, -0.5


@dataclass(frozen=True)
class Values:
    """The constants of a game, see above."""

    move: float
    refused: float
    shaping: float
    gamma: float
    solved: float
    shortest: float = 0.0
    limit: float = 0.0


VALUES: dict[type[Game], Values] = {
    PathGame: Values(-0.01, -0.1, shaping=1.0, gamma=0.99, solved=1.0, shortest=0.5, limit=-1.0),
    Sokoban: Values(-0.01, -0.05, shaping=0.1, gamma=0.99, solved=10.0, limit=-5.0),
    Sudoku: Values(0.0, -0.1, shaping=1.0, gamma=1.0, solved=1.0),
}


@quick
def game(task: Task, turn: Turn, episode: Episode) -> float:
    """The reward of an answer with moves, or of a plan: own + shared. MarlError as `log.line_of`."""
    return _role(task, turn, episode, empty=NO_LIST)


@quick
def program(task: Task, turn: Turn, episode: Episode) -> float:
    """The reward of a tool caller's program: own + shared. MarlError as `log.line_of`."""
    return _role(task, turn, episode, empty=0.0)


def _role(task: Task, turn: Turn, episode: Episode, empty: float) -> float:
    lines, number = log.line_of(turn, episode)
    line, before = lines[number], executed(game_of(task), lines[:number])
    own = of_moves(before, line.moves) if line.moves else NO_WORDS if not line.words else NO_LIST
    if line.moves == ():
        own = empty
    same_turn = next((after for after in lines[number:] if after.verb == "moves"), None)
    if same_turn is None or before.over:
        return own
    return own + (of_moves(before, same_turn.moves) if same_turn.moves else 0.0 if same_turn.words else NO_WORDS)


def of_moves(before: Played[Game], moves: tuple[str, ...]) -> float:
    """The reward of moves from a state."""
    values, reward, now = VALUES[type(before.game)], 0.0, before
    for move in moves:
        if now.over:
            break
        after = play(now, [move])
        reward += values.refused if after.refused else values.move
        reward += values.shaping * (values.gamma * after.game.potential - now.game.potential)
        if isinstance(after.game, Sokoban) and isinstance(now.game, Sokoban):
            placed = after.game.on_goals - now.game.on_goals
            reward += ON * max(placed, 0) + OFF * max(-placed, 0)
        if after.game.solved:
            shortest = isinstance(after.game, PathGame) and after.made == after.game.shortest
            reward += values.solved + (values.shortest if shortest else 0.0)
        elif after.over:
            reward += values.limit
        now = after
    return reward
