"""Role rewards on a board, for an agent's moves or planned moves from the team's cell.

`at-plan-path`:

    r = d(s) - d(s')                       nearer to the goal, in moves of a shortest walk around the walls
        - 0.01 * [moves taken] - 0.1 * [moves refused]
        - 0.1 if no moves can be parsed
        + 1 at the goal, + 0.5 if the whole walk there is a shortest one
        - 1 for the last act of an episode that did not reach the goal

s is the team's cell before the act, s' the cell after these moves; a planner's moves count as if executed exactly. The
reward is local: it does not depend on later acts. The team reward, success, is a separate component.

Source: the constants are those of AT-GRPO's public code (arXiv 2510.11062), whose whole reward is `plan-path`
(`game_rewards`). There the potential is minus the Manhattan distance, discounted by 0.99. Here it is the distance
around the walls, undiscounted: theirs rewards walking into dead ends, and staying far from the goal.

`at-bee-line`, for a planner that does not see walls: the first, second and third line, and + 1 at the goal, on the
board without walls. With `at-plan-path` the best of K plans would often be one that by chance no wall blocks: the
planner would be trained on what it cannot know, and the executor would see fewer blocked plans than later.

`at-bee-line-paid`: the same plus 10, a role reward on a different scale.
"""

from marl_verl import Task
from marl_verl.episode import Episode, Turn
from marl_verl.tasks import quick
from marl_verl_games import log
from marl_verl_games.board import Board, PathGame
from marl_verl_games.game import Played, executed, play

STEP, INVALID, GOAL, OPTIMAL, FAIL = -0.01, -0.1, 1.0, 0.5, -1.0
PAY = 10.0


@quick
def at_plan_path(task: Task, turn: Turn, episode: Episode) -> float:
    """The reward of one act on a board; -0.1 without moves. MarlError as `log.line_of`."""
    lines, number = log.line_of(turn, episode)
    line, before = lines[number], executed(PathGame.of(task), lines[:number])
    over = episode.finished and number == len(lines) - 1
    if line.moves is None:
        return INVALID + (FAIL if over else 0.0)
    after, reward = _played(before, line.moves)
    if after.game.solved:
        shortest = not before.refused and not after.refused and after.made == after.game.shortest
        return reward + GOAL + (OPTIMAL if shortest else 0.0)
    return reward + (FAIL if over else 0.0)


@quick
def at_bee_line(task: Task, turn: Turn, episode: Episode) -> float:
    """The reward of one plan, on the board without walls. MarlError as `log.line_of`."""
    lines, number = log.line_of(turn, episode)
    before, moves = executed(PathGame.of(task), lines[:number]).game, lines[number].moves
    if moves is None:
        return INVALID
    free = PathGame(Board(before.board.size, frozenset(), before.cell, before.board.goal), before.cell)
    after, reward = _played(Played(free), moves)
    return reward + GOAL * after.game.solved


def _played(before: Played[PathGame], moves: tuple[str, ...]) -> tuple[Played[PathGame], float]:
    """(the state after moves, the first two terms of the reward)."""
    after = play(before, moves)
    refused = len(after.refused)
    taken = after.made - before.made - refused
    return after, before.game.left - after.game.left + STEP * taken + INVALID * refused


@quick
def at_bee_line_paid(task: Task, turn: Turn, episode: Episode) -> float:
    """`at_bee_line` plus the constant `PAY`."""
    return PAY + at_bee_line(task, turn, episode)
