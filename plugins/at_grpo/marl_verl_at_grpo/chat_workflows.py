"""Plan-Path for chat models, as in the paper: a tool caller, whose program finds a path, and a planner, which moves.

Source: AT-GRPO, arXiv 2510.11062, and its public code: the tool caller acts first in each turn, the planner sees the
program's output, and decides; 4 turns on a board of 10 x 10. The wording of the prompts is our own.
"""

from __future__ import annotations

from marl_verl_math.python_tool import program_in, run_python

from marl_verl import Task, Workflow
from marl_verl.episode import Team
from marl_verl.errors import MarlError
from marl_verl_at_grpo import log
from marl_verl_at_grpo.board import Board, moves_in, place

CALLER, PLANNER, WALKER = "tool-caller", "planner", "walker"
RULES = """You are on a board: `.` is free, `#` is a wall, `@` is where you stand, `G` is the goal.
A move is one cell: U (up, one row less), D (down, one row more), L (left, one column less), R (right, one column more).
Moves off the board or into a wall are refused. Reach the goal in as few moves as possible."""
LIST = 'End your answer with a list of moves, such as ["U", "R"].'


def board_text(board: Board, cell: str, turn: int, turns: int) -> str:
    """The board as all agents see it in a turn."""
    (row, column), (goal_row, goal_column) = place(cell), place(board.goal)
    where = f"You stand at row {row}, column {column}; the goal is at row {goal_row}, column {goal_column} (from 0)."
    return f"{RULES}\n\n{board.drawn(cell)}\n\n{where}\nTurn {turn + 1} of {turns}."


class _Turns(Workflow):
    """Base of both workflows.

    Options:
        turns: maximum number of turns.
    """

    turns: int = 4

    def __post_init__(self) -> None:
        if self.turns < 1:
            raise MarlError(f"{type(self).__name__}: turns must be 1 or more, got {self.turns}")

    async def _moves(self, team: Team, agent: str, seen: str) -> log.Line:
        action = await team[agent].act(f"{seen}\n{LIST}")
        moves = moves_in(action.text)
        if moves is None:
            team.invalid(action, "no list of moves")
        return log.Line(agent, "moves", moves)


class ToolCallerPlanner(_Turns):
    """In each turn the tool caller writes a program, and the planner, which sees its output, moves.

    The moves that a program prints are the tool caller's plan. They are proposed as the team's answer, so that its
    candidates get their own scores and rewards.
    """

    async def run(self, task: Task, team: Team) -> str:
        """Return the plans and moves as a `log`."""
        board, lines = Board.of(task), list[log.Line]()
        for turn in range(self.turns):
            seen = board_text(board, log.executed(board, lines).cell, turn, self.turns)
            action = await team[CALLER].act(
                f"{seen}\nWrite a Python program in a ```python block that finds a shortest way and prints it as a "
                'list of moves, such as ["U", "R"]. It has no input: write the board into it.'
            )
            program, printed = program_in(action.text), "(no program)"
            if program is not None:
                printed = await team[CALLER].call(run_python, program)
            plan = moves_in(printed)
            if plan is None:
                team.invalid(action, "no program that prints moves")
            lines.append(log.Line(CALLER, "plans", plan))
            team.propose(log.written(lines))
            shown = f"{seen}\nA program of the tool caller printed:\n{printed}\nIt may be wrong: check it, and decide."
            lines.append(await self._moves(team, PLANNER, shown))
            team.propose(log.written(lines))
            if log.executed(board, lines).reached:
                break
        return log.written(lines)


class OneChatWalker(_Turns):
    """One agent plans and moves, turn by turn, without a tool: the single-agent baseline."""

    async def run(self, task: Task, team: Team) -> str:
        """Return the moves as a `log`."""
        board, lines = Board.of(task), list[log.Line]()
        for turn in range(self.turns):
            seen = board_text(board, log.executed(board, lines).cell, turn, self.turns)
            lines.append(await self._moves(team, WALKER, seen))
            team.propose(log.written(lines))
            if log.executed(board, lines).reached:
                break
        return log.written(lines)
