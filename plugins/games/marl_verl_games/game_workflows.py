"""Plan-Path, Sokoban and Sudoku in turns, for chat models: a planner and an executor, and a single agent.

Each turn shows the state, the legal moves, and the refused moves of the turn before with the reason. After every act
the log so far is proposed as the answer, so that a candidate is scored by the state that it leads to.
"""

from collections.abc import Callable
from typing import ClassVar

from marl_verl import Task, Workflow
from marl_verl.episode import Team
from marl_verl.options import Positive
from marl_verl_games import log
from marl_verl_games.board import PathGame
from marl_verl_games.game import Game, Played, play
from marl_verl_games.lists import answered
from marl_verl_games.sokoban import Sokoban
from marl_verl_games.sudoku import Sudoku

PLANNER, EXECUTOR = "planner", "executor"
GAMES: dict[str, Callable[[Task], Game]] = {
    "plan-path": PathGame.of,
    "sokoban": lambda task: Sokoban.of(task.data["rows"]),
    "sudoku": lambda task: Sudoku.of(task.data),
}


def game_of(task: Task) -> Game:
    """The first state of a task."""
    return GAMES[task.data.get("game", "plan-path")](task)


class GameWorkflow(Workflow):
    """Base of the workflows of games.

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
        raise NotImplementedError

    def seen(self, last: Played[Game], turn: int) -> str:
        """What all agents see at the start of a turn, after the moves of the turn before."""
        game = last.game
        parts = [game.rules, game.drawn(), f"Legal moves now: {game.legal() or 'none'}."]
        refused = "; ".join(f"{move} ({why})" for move, why in last.refused)
        parts += [f"Refused in the last turn: {refused}."] if refused else []
        return "\n\n".join([*parts, f"Turn {turn + 1} of {self.turns}."])

    async def line(
        self, team: Team, lines: list[log.Line], agent: str, verb: log.Verb, seen: str, game: Game
    ) -> log.Line:
        """Add one act as a line of the log."""
        action = await team[agent].act(f"{seen}\nEnd your answer with a list of moves, such as {game.example}.")
        line = answered(agent, verb, action.text, game.move)
        if not line.moves:
            team.invalid(action, "no list of moves")
        return log.proposed(team, lines, line)


class GamePlannerExecutor(GameWorkflow):
    """In each turn the planner plans moves; the executor, which sees the plan, makes the moves."""

    async def turn(self, team: Team, lines: list[log.Line], seen: str, game: Game) -> None:
        plan = await self.line(team, lines, PLANNER, "plans", f"{seen}\nPlan the next moves for the executor.", game)
        advice = f"The planner's moves: {' '.join(plan.moves or ('none',))}. They may be wrong: check them and move."
        await self.line(team, lines, EXECUTOR, "moves", f"{seen}\n{advice}", game)


class GamePlayer(GameWorkflow):
    """One agent, named `player`, plays alone: the single-agent baseline."""

    player: ClassVar[str] = "player"

    async def turn(self, team: Team, lines: list[log.Line], seen: str, game: Game) -> None:
        await self.line(team, lines, self.player, "moves", seen, game)
