"""Plan-Path in turns, for tiny models: boards with demonstrations; the workflows of a planner and an executor, and of a
single agent; and role rewards.

Role rewards on a board, for an agent's moves or planned moves from the team's cell.

`at-plan-path`:

    r = d(s) - d(s')                       nearer to the goal, in moves of a shortest walk around the walls
        - 0.01 * [moves taken] - 0.1 * [moves refused]
        - 0.1 if no moves can be parsed
        + 1 at the goal, + 0.5 if the whole walk there is a shortest one
        - 1 for the last act of an episode that did not reach the goal

s is the team's cell before the act, s' the cell after these moves; a planner's moves count as if executed exactly. The
reward is local: it does not depend on later acts. The team reward, success, is a separate component.

Source: the constants are those of AT-GRPO's public code (arXiv 2510.11062), whose whole reward is `plan-path`
(`game_workflows`); the distance around the walls is ours: theirs rewards walking into dead ends.

`at-bee-line`, for a planner that does not see walls: the first, second and third line, and + 1 at the goal, on the
board without walls. `at-bee-line-paid`: the same plus 10, a role reward on a different scale.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

from annotated_types import Interval
from marl_verl_tiny.grid import cells

from marl_verl import Episode, Task, Team, Turn
from marl_verl.options import Positive
from marl_verl.tasks import DrawnTasks, quick
from marl_verl_games import log
from marl_verl_games.game import STEPS, Played, apart, executed, play
from marl_verl_games.game_workflows import GamePlayer
from marl_verl_games.plan_path import WORDS, PathGame, PlanPath, Size, moves_in, place

PLANNER, EXECUTOR, SOLO = "planner", "executor", "solo"
NONE = "none"
WORD = {move: word for word, move in WORDS.items()}


class TinyPlanPath(PlanPath, DrawnTasks):
    """Small boards for tiny models, one token per word, with demonstrations.

    Only boards that need both agents: those right in the demonstrations reach the goal together, but not if either is
    careless. A right planner plans straight for the goal (it knows no walls), the executor makes the move that is free
    and nearest to the plan, the solo agent does both. A careless planner and solo agent go for the landmark; a careless
    executor and solo agent make the first move, wall or not.

    Options:
        turns: maximum number of turns that the two need, with one move each; half of them is the minimum.
    """

    name = "at-plan-path-tiny"
    agents = (PLANNER, EXECUTOR, SOLO)
    size: Size = 4
    wall_share: Annotated[float, Interval(ge=0, lt=1)] = 0.25
    turns: Positive = 4

    def _near(self, left: int) -> bool:
        return self.turns // 2 <= left <= self.turns

    def _fit(self, task: Task) -> bool:
        best = ((True, True), (True, False), (False, True))
        return [self._reached(task, *right) for right in best] == [True, False, False]

    def _reached(self, task: Task, planner: bool, executor: bool) -> bool:
        """Whether a team reaches the goal; `planner`, `executor`: whether that agent acts right or carelessly."""
        board, at = PathGame.of(task), str(task.data["start"])
        for _ in range(self.turns):
            plan = bee_line(at, board.goal if planner else str(task.data["landmark"]))
            if not plan or at == board.goal:
                break
            move = around(board, at, plan) if executor else plan[0]
            if planner and executor and move not in plan:
                return False  # a side step, whose direction neither agent can know
            at = board.beside(at, move) or at
        return at == board.goal

    def vocabulary(self) -> list[str]:
        return [*cells(self.size), *WORDS, "at", "goal", "landmark", "blocked", "plan", NONE]

    def _demonstration(self, agent: str, task: Task, rng: random.Random, good: float) -> tuple[str, str] | None:
        board = PathGame.of(task)
        at = rng.choice([cell for cell in cells(self.size) if cell not in board.walls and cell != board.goal])
        right = rng.random() < good
        plan = bee_line(at, board.goal if right else str(task.data["landmark"]))
        if agent == EXECUTOR:
            plan = bee_line(at, rng.choice([cell for cell in cells(self.size) if cell != at]))
        if not plan:
            return None  # at the landmark
        if agent == PLANNER:
            return planner_sees(task, at), written(plan)
        seen = executor_sees(task, at, plan) if agent == EXECUTOR else solo_sees(task, at)
        return seen, written([around(board, at, plan) if right else plan[0]])


def bee_line(at: str, to: str, most: int = 2) -> tuple[str, ...]:
    """The first `most` moves straight to a cell, ignoring walls: along the axis with the larger distance first."""
    (row, column), (goal_row, goal_column) = place(at), place(to)
    moves: list[str] = []
    while (row, column) != (goal_row, goal_column) and len(moves) < most:
        down, right = goal_row - row, goal_column - column
        along = "U" if down < 0 else "D", "L" if right < 0 else "R"
        moves.append(along[abs(down) < abs(right)])
        row, column = row + STEPS[moves[-1]][0], column + STEPS[moves[-1]][1]
    return tuple(moves)


def around(board: PathGame, at: str, plan: Sequence[str]) -> str:
    """The free move that ends nearest to the plan's target without walls; ties: the plan's first."""
    row, column = place(at)
    aim = (row + sum(STEPS[move][0] for move in plan), column + sum(STEPS[move][1] for move in plan))

    def worth(move: str) -> tuple[int, int]:
        named = plan.index(move) if move in plan else len(plan)
        return apart(place(str(board.beside(at, move))), aim), named

    return min((move for move in STEPS if board.beside(at, move) is not None), key=worth, default=plan[0])


def written(moves: Sequence[str]) -> str:
    return " ".join(WORD[move] for move in moves)


def planner_sees(task: Task, at: str) -> str:
    """The planner's observation: cell, goal and an irrelevant landmark, without walls."""
    return f"at {at} goal {task.data['goal']} landmark {task.data['landmark']}"


def executor_sees(task: Task, at: str, plan: Sequence[str] | None) -> str:
    """The executor's observation: blocked moves and the plan, without the goal."""
    return f"blocked {blocked(task, at)} plan {written(plan) if plan else NONE}"


def solo_sees(task: Task, at: str) -> str:
    return f"{planner_sees(task, at)} blocked {blocked(task, at)}"


def blocked(task: Task, at: str) -> str:
    """The moves blocked by a wall or the edge, in words."""
    board = PathGame.of(task)
    return written([move for move in STEPS if board.beside(at, move) is None]) or NONE


MOVES: dict[log.Verb, int] = {"plans": 2, "moves": 1}


class OneWalker(GamePlayer):
    """One agent with the observations of both moves, turn by turn: the single-agent baseline."""

    turns: Positive = 4

    async def turn(self, task: Task, team: Team, lines: list[log.Line], last: Played[Any], number: int) -> None:
        await self.line(team, lines, SOLO, "moves", solo_sees(task, last.game.cell))

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
    """In each turn the planner, which sees the goal, plans two moves; the executor, which sees the walls, makes one."""

    async def turn(self, task: Task, team: Team, lines: list[log.Line], last: Played[Any], number: int) -> None:
        at = last.game.cell
        plan = await self.line(team, lines, PLANNER, "plans", planner_sees(task, at))
        await self.line(team, lines, EXECUTOR, "moves", executor_sees(task, at, plan.moves))


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
        shortest = after.made == after.game.left(after.game.start)  # so that no move was refused
        return reward + GOAL + (OPTIMAL if shortest else 0.0)
    return reward + (FAIL if over else 0.0)


@quick
def at_bee_line(task: Task, turn: Turn, episode: Episode) -> float:
    """The reward of one plan, on the board without walls. MarlError as `log.line_of`."""
    lines, number = log.line_of(turn, episode)
    before, moves = executed(PathGame.of(task), lines[:number]).game, lines[number].moves
    if moves is None:
        return INVALID
    after, reward = _played(Played(replace(before, walls=frozenset())), moves)
    return reward + GOAL * after.game.solved


def _played(before: Played[PathGame], moves: tuple[str, ...]) -> tuple[Played[PathGame], float]:
    """(the state after moves, the first two terms of the reward)."""
    after = play(before, moves)
    refused = len(after.refused)
    taken = after.made - before.made - refused
    nearer = before.game.left(before.game.cell) - after.game.left(after.game.cell)
    return after, nearer + STEP * taken + INVALID * refused


@quick
def at_bee_line_paid(task: Task, turn: Turn, episode: Episode) -> float:
    """`at_bee_line` plus the constant `PAY`."""
    return PAY + at_bee_line(task, turn, episode)
