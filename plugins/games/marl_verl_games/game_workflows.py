"""Plan-Path, Sokoban and Sudoku in turns, for chat models: a tool caller and a planner, and a single agent.

Each turn shows the state, the legal moves, and the refused moves of the turn before with the reason. After every act
the log so far is proposed as the answer, so that a candidate is scored by the state that it leads to.

Source: AT-GRPO, arXiv 2510.11062, and its public code: the tool caller, whose program finds the moves, acts first in
each turn; the planner sees the program's output, and decides; 5 turns. The wording of the prompts is our own.
"""

from collections.abc import Callable

from marl_verl_sandbox import program_in, run_python

from marl_verl import Task, Workflow
from marl_verl.episode import Team
from marl_verl.options import Positive
from marl_verl_games import log
from marl_verl_games.board import PathGame
from marl_verl_games.game import Game, Played, play
from marl_verl_games.lists import answered, printed
from marl_verl_games.sokoban import Sokoban
from marl_verl_games.sudoku import Sudoku

CALLER, PLANNER = "tool-caller", "planner"
GAMES: dict[str, Callable[[Task], Game]] = {
    "plan-path": PathGame.of,
    "sokoban": lambda task: Sokoban.of(task.data["rows"]),
    "sudoku": lambda task: Sudoku.of(task.data),
}


def game_of(task: Task) -> Game:
    """The first state of a task."""
    return GAMES[task.data.get("game", "plan-path")](task)


class GamePlayer(Workflow):
    """One agent of any name plays alone, without a tool: the single-agent baseline.

    Options:
        turns: maximum number of turns.
    """

    turns: Positive = 5

    async def run(self, task: Task, team: Team) -> str:
        lines, last = list[log.Line](), Played(game_of(task))
        for turn in range(self.turns):
            await self.turn(team, lines, self.seen(last, turn), last.game)
            last = play(last, lines[-1].moves or ())
            if last.over:
                break
        return log.written(lines)

    async def turn(self, team: Team, lines: list[log.Line], seen: str, game: Game) -> None:
        """Add the lines of one turn, the last of which moves."""
        await self.moves(team, lines, team.agents[0], seen, game)

    async def moves(self, team: Team, lines: list[log.Line], agent: str, seen: str, game: Game) -> None:
        """Add the line of an agent that moves."""
        action = await team[agent].act(f"{seen}\nEnd your answer with a list of moves, such as {game.example}.")
        line = answered(agent, "moves", action.text, game.move)
        if not line.moves:
            team.invalid(action, "no list of moves")
        log.proposed(team, lines, line)

    def seen(self, last: Played[Game], turn: int) -> str:
        """What all agents see at the start of a turn, after the moves of the turn before."""
        game = last.game
        parts = [game.rules, game.drawn(), f"Legal moves now: {game.legal() or 'none'}."]
        refused = "; ".join(f"{move} ({why})" for move, why in last.refused)
        parts += [f"Refused in the last turn: {refused}."] if refused else []
        return "\n\n".join([*parts, f"Turn {turn + 1} of {self.turns}."])


class ToolCallerPlanner(GamePlayer):
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
        if program:
            output = await team[CALLER].call(run_python, program)
        plan = printed(CALLER, "plans", output, game.move, game.only_moves)
        if plan.moves is None:
            team.invalid(action, "no program that prints moves")
        log.proposed(team, lines, plan)
        shown = f"{seen}\nA program of the tool caller printed:\n{output}\nIt may be wrong: check it, and decide."
        await self.moves(team, lines, PLANNER, shown, game)
