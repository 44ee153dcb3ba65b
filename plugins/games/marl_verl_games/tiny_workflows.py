"""Plan-Path in turns, for tiny models: a planner and an executor, and a single agent."""

from marl_verl import Task, Workflow
from marl_verl.episode import Team
from marl_verl.options import Positive
from marl_verl_games import log
from marl_verl_games.board import PathGame, moves_in
from marl_verl_games.game import executed
from marl_verl_games.plan_path import EXECUTOR, PLANNER, SOLO, executor_sees, planner_sees, solo_sees

MOVES: dict[log.Verb, int] = {"plans": 2, "moves": 1}


class OneWalker(Workflow):
    """One agent with the observations of both moves, turn by turn: the single-agent baseline.

    Options:
        turns: maximum number of turns, with one move each.
    """

    turns: Positive = 4

    async def run(self, task: Task, team: Team) -> str:
        start, lines = PathGame.of(task), list[log.Line]()
        for _ in range(self.turns):
            await self.turn(task, team, lines, executed(start, lines).game.cell)
            if executed(start, lines).game.solved:
                break
        return log.written(lines)

    async def turn(self, task: Task, team: Team, lines: list[log.Line], at: str) -> None:
        """Add the lines of one turn, which begins at a cell."""
        await self.line(team, lines, SOLO, "moves", solo_sees(task, at))

    async def line(self, team: Team, lines: list[log.Line], agent: str, verb: log.Verb, seen: str) -> log.Line:
        """Add one act as a log line: one move, or a plan of two. Further moves are dropped and marked invalid."""
        most = MOVES[verb]
        action = await team[agent].act(seen)
        moves = moves_in(action.text)
        if moves is None:
            team.invalid(action, "no moves")
        elif len(moves) > most:
            team.invalid(action, f"more than {most} moves")
            moves = moves[:most]
        return log.proposed(team, lines, log.Line(agent, verb, moves))


class PlannerExecutor(OneWalker):
    """In each turn the planner, which sees the goal, plans two moves; the executor, which sees the walls, makes one.

    After every act the log so far is proposed as answer: a candidate is scored by the state that it leads to.
    """

    async def turn(self, task: Task, team: Team, lines: list[log.Line], at: str) -> None:
        plan = await self.line(team, lines, PLANNER, "plans", planner_sees(task, at))
        await self.line(team, lines, EXECUTOR, "moves", executor_sees(task, at, plan.moves))
