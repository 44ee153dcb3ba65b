"""Role rewards on a board: what an agent's own moves, or the moves it plans, are worth where it stands.

`at-plan-path`:

    r = d(s) - d(s')                       nearer to the goal, in moves of a shortest walk around the walls
        - 0.01 * [moves taken] - 0.1 * [moves refused]
        - 0.1 where no moves can be read
        + 1 at the goal, + 0.5 if the whole walk there is a shortest one
        - 1 where the last turn is over, and the goal was not reached

s is where the team stood before the act, s' where these moves lead from there; for a planner as if they were carried
out to the letter. Local: nothing that the team does afterwards is in it. The team's reward, success, comes besides.

Source: the constants and the potential are those of AT-GRPO's public code (arXiv 2510.11062), where the potential is
minus the Manhattan distance, discounted by 0.99. Here it is the distance around the walls, undiscounted: the other pays
for walking into dead ends, and for standing still far from the goal.

`at-bee-line`, for a planner that knows no walls: the first, second and third line, and + 1 at the goal, on the board
without its walls. With `at-plan-path` the best of K plans would often be one that walls do not block, by luck: the
planner would be taught what it cannot know, and the executor would have less to go around than later.

`at-bee-line-paid`: the same, and 10 besides: a role that earns more, whatever it does.
"""

from __future__ import annotations

from marl_verl import Task
from marl_verl.episode import Episode, Turn
from marl_verl.errors import MarlError
from marl_verl_at_grpo import log
from marl_verl_at_grpo.board import Board

STEP, INVALID, GOAL, OPTIMAL, FAIL = -0.01, -0.1, 1.0, 0.5, -1.0
PAY = 10.0


def at_plan_path(task: Task, turn: Turn, episode: Episode) -> float:
    """The reward of one act on a board.

    Raises:
        MarlError: the episode's answer has no line for the act (a sampler that leaves states without an answer).
    """
    lines, number = _line(turn, episode)
    board, line = Board.of(task), lines[number]
    before = log.stands(board, lines[:number])
    over = episode.finished and number == len(lines) - 1
    if line.moves is None:
        return INVALID + (FAIL if over else 0.0)
    walk = board.walk(before.cell, line.moves)
    reward = board.left(before.cell) - board.left(walk.cell) + STEP * walk.taken + INVALID * walk.refused
    if walk.reached:
        shortest = before.refused + walk.refused == 0 and before.taken + walk.taken == board.left(board.start)
        return reward + GOAL + (OPTIMAL if shortest else 0.0)
    return reward + (FAIL if over else 0.0)


def at_bee_line(task: Task, turn: Turn, episode: Episode) -> float:
    """The reward of one plan, on the board without walls.

    Raises:
        MarlError: as `at_plan_path`.
    """
    lines, number = _line(turn, episode)
    board, moves = Board.of(task), lines[number].moves
    if moves is None:
        return INVALID
    at = log.stands(board, lines[:number]).cell
    free = Board(board.size, frozenset(), at, board.goal)
    walk = free.walk(at, moves)
    return free.left(at) - free.left(walk.cell) + STEP * walk.taken + INVALID * walk.refused + GOAL * walk.reached


def at_bee_line_paid(task: Task, turn: Turn, episode: Episode) -> float:
    """`at_bee_line`, and `PAY` in any case."""
    return PAY + at_bee_line(task, turn, episode)


def _line(turn: Turn, episode: Episode) -> tuple[list[log.Line], int]:
    """The lines of an answer, and the number of the one that an act added."""
    lines = log.read("" if episode.answer is None else episode.answer)
    own = [number for number, line in enumerate(lines) if line.agent == turn.agent]
    if turn.turn >= len(own):
        raise MarlError(f"the answer has no line for turn {turn.turn} of agent '{turn.agent}'")
    return lines, own[turn.turn]
