"""Games for chat models, as in the paper: a tool caller, whose program finds the moves, and a planner, which moves.

Source: AT-GRPO, arXiv 2510.11062, and its public code: the tool caller acts first in each turn, the planner sees the
program's output, and decides; 5 turns. Plan-Path on 10 x 10, Sokoban on 6 x 6, Sudoku 4 x 4. The wording of the prompts
is our own.
"""

from typing import ClassVar

from marl_verl_games import log
from marl_verl_games.game import Game
from marl_verl_games.game_workflows import PLANNER, GamePlayer, GameWorkflow
from marl_verl_games.lists import printed
from marl_verl_math.answers import program_in
from marl_verl_sandbox import run_python

from marl_verl.episode import Team

CALLER = "tool-caller"


class ToolCallerPlanner(GameWorkflow):
    """In each turn the tool caller writes a program, and the planner, which sees its output, moves.

    The moves that a program prints are the tool caller's plan. They are proposed as the team's answer, so that its
    candidates get their own scores and rewards.
    """

    async def turn(self, team: Team, lines: list[log.Line], seen: str, game: Game) -> None:
        action = await team[CALLER].act(
            f"{seen}\nWrite a Python program in a ```python block that finds the moves and prints them as a list, "
            f"such as {game.example}. It has no input: write the state into it."
        )
        program, output = program_in(action.text), "(no program)"
        if program is not None:
            output = await team[CALLER].call(run_python, program)
        plan = printed(CALLER, "plans", output, game.move, game.only_moves)
        if plan.moves is None:
            team.invalid(action, "no program that prints moves")
        log.proposed(team, lines, plan)
        shown = f"{seen}\nA program of the tool caller printed:\n{output}\nIt may be wrong: check it, and decide."
        await self.line(team, lines, PLANNER, "moves", shown, game)


class OneChatWalker(GamePlayer):
    """One agent plans and moves, turn by turn, without a tool: the single-agent baseline."""

    player: ClassVar[str] = "walker"
