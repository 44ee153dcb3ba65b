"""Plan-Path, Sokoban and Sudoku in turns, for chat models: a tool caller and a planner, and a single agent.

Each turn shows the state, the legal moves, and the refused moves of the turn before with the reason. After every act
the log so far is proposed as the answer, so that a candidate is scored by the state that it leads to.

Source: AT-GRPO, arXiv 2510.11062, and its public code: the tool caller, whose program finds the moves, acts first in
each turn; the planner sees the program's output, and decides; 5 turns. The wording of the prompts is our own.

Role rewards (README.md says what answers without moves get):

    r = own + shared

own is the reward of the agent's moves or planned moves from the team's state, shared that of the moves of the same turn
that move the team. The reward of moves is a sum over those until the end of the game, with the constants `VALUES` and a
potential Phi:

    move or refused move + shaping * (gamma Phi(s') - Phi(s)) + solved, + shortest if the whole walk is one, or limit

Source: AT-GRPO's public code for Plan-Path and Sokoban; the values of Sudoku are ours. The team reward, 1 if solved, is
a component of its own: alpha 0 gives the authors' reward.
"""

from dataclasses import dataclass
from typing import Any

from marl_verl_sandbox import run_program

from marl_verl import Episode, Task, Team, Turn, Workflow
from marl_verl.options import Positive
from marl_verl.tasks import quick
from marl_verl_games import log
from marl_verl_games.game import Game, Played, executed, play
from marl_verl_games.plan_path import PathGame
from marl_verl_games.sokoban import Sokoban
from marl_verl_games.sudoku import Sudoku

CALLER, PLANNER = "tool-caller", "planner"
GAMES: dict[str, type[Game]] = {"plan-path": PathGame, "sokoban": Sokoban, "sudoku": Sudoku}


def game_of(task: Task) -> Game:
    return GAMES[task.data.get("game", "plan-path")].of(task)


class GamePlayer(Workflow):
    """One agent of any name plays alone, without a tool: the single-agent baseline.

    Options:
        turns: maximum number of turns.
    """

    turns: Positive = 5

    async def run(self, task: Task, team: Team) -> str:
        lines, last = list[log.Line](), Played(game_of(task))
        for number in range(self.turns):
            await self.turn(task, team, lines, last, number)
            last = play(last, lines[-1].moves or ())
            if last.over:
                break
        return log.written(lines)

    async def turn(self, task: Task, team: Team, lines: list[log.Line], last: Played[Any], number: int) -> None:
        """Add the lines of one turn, the last of which moves. `last`: the result of the turn before."""
        await self.moves(team, lines, team.agents[0], self.seen(last, number), last.game)

    async def moves(self, team: Team, lines: list[log.Line], agent: str, seen: str, game: Game) -> None:
        action = await team[agent].act(f"{seen}\nEnd your answer with a list of moves, such as {game.example}.")
        line = log.answered(agent, "moves", action.text, game.move)
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

    async def turn(self, task: Task, team: Team, lines: list[log.Line], last: Played[Any], number: int) -> None:
        seen, game = self.seen(last, number), last.game
        action = await team[CALLER].act(
            f"{seen}\nWrite a Python program in a ```python block that finds the moves and prints them as a list, "
            f"such as {game.example}. It has no input: write the state into it."
        )
        output, printed = await run_program(team[CALLER], action.text)
        plan = log.printed(CALLER, "plans", output, game.move, game.only_moves)
        if plan.moves is None:
            team.invalid(action, "no program that prints moves")
        log.proposed(team, lines, plan)
        shown = f"{seen}\nA program of the tool caller printed:\n{printed}\nIt may be wrong: check it, and decide."
        await self.moves(team, lines, PLANNER, shown, game)


NO_LIST, NO_WORDS = -2.0, -1.0
ON, OFF = 1.0, -0.5


@dataclass(frozen=True)
class Values:
    """The constants of a game's moves, see above. limit: of a game that ends unsolved."""

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
            shortest = isinstance(after.game, PathGame) and after.made == after.game.left(after.game.start)
            reward += values.solved + (values.shortest if shortest else 0.0)
        elif after.over:
            reward += values.limit
        now = after
    return reward
