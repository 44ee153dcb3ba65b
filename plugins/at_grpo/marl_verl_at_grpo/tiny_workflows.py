"""Plan-Path in turns, for tiny models: a planner and an executor, and one agent that does it all."""

from __future__ import annotations

from marl_verl import Task, Workflow
from marl_verl.episode import LiveTeam
from marl_verl.errors import MarlError
from marl_verl_at_grpo import log
from marl_verl_at_grpo.board import Board, moves_in
from marl_verl_at_grpo.plan_path import EXECUTOR, PLANNER, SOLO, executor_sees, planner_sees, solo_sees


class _Turns(Workflow):
    """Options:
    turns: the most times that the team may move.
    moves: the most moves of one turn; what an agent says beyond them is not heard.
    """

    turns: int = 3
    moves: int = 2

    def __post_init__(self) -> None:
        for name in ("turns", "moves"):
            if getattr(self, name) < 1:
                raise MarlError(f"{type(self).__name__}: {name} must be 1 or more, got {getattr(self, name)}")

    async def _line(self, team: LiveTeam, agent: str, verb: log.Verb, seen: str) -> log.Line:
        action = await team[agent].act(seen)
        moves = moves_in(action.text)
        if moves is None:
            team.invalid(action, "no moves")
        elif len(moves) > self.moves:
            team.invalid(action, f"more than {self.moves} moves")
            moves = moves[: self.moves]
        return log.Line(agent, verb, moves)


class PlannerExecutor(_Turns):
    """In each turn the planner, who knows the goal, says where to go, and the executor, who knows the walls, moves.

    After every act the team's answer so far is proposed: a candidate is scored by the state that it leads to.
    """

    async def run(self, task: Task, team: LiveTeam) -> str:
        """What was planned and moved, as a `log`."""
        board, lines = Board.of(task), list[log.Line]()
        for _ in range(self.turns):
            at = log.stands(board, lines).cell
            lines.append(await self._line(team, PLANNER, "plans", planner_sees(task, at)))
            team.propose(log.written(lines))
            lines.append(await self._line(team, EXECUTOR, "moves", executor_sees(task, at, lines[-1].moves)))
            team.propose(log.written(lines))
            if log.stands(board, lines).reached:
                break
        return log.written(lines)


class OneWalker(_Turns):
    """One agent sees goal and walls, and moves, turn by turn: the single agent that teams are compared with."""

    async def run(self, task: Task, team: LiveTeam) -> str:
        """What was moved, as a `log`."""
        board, lines = Board.of(task), list[log.Line]()
        for _ in range(self.turns):
            lines.append(await self._line(team, SOLO, "moves", solo_sees(task, log.stands(board, lines).cell)))
            team.propose(log.written(lines))
            if log.stands(board, lines).reached:
                break
        return log.written(lines)
