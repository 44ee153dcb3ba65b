"""Plan-Path: reach the goal of a random board with walls. The task sets, for chat models and for tiny ones."""

import random
from collections.abc import Sequence
from typing import Annotated, Any

from annotated_types import Interval

from marl_verl import Task, TaskSet
from marl_verl.options import Positive
from marl_verl.tasks import Split, distinct, held_out
from marl_verl_games import log
from marl_verl_games.board import STEPS, WORDS, Board, PathGame, cells, place
from marl_verl_games.game import outcome

HELD_OUT = 10  # one board in ten
PLANNER, EXECUTOR, SOLO = "planner", "executor", "solo"
NONE = "none"
Size = Annotated[int, Interval(ge=2, le=26)]
WORD = {move: word for word, move in WORDS.items()}


class PlanPath(TaskSet):
    """Random boards; an answer is a `log`, with score 1 if it ends on the goal. The defaults are the paper's.

    Options:
        size: side of the board, in cells (2 to 26).
        wall_share: probability that a cell is a wall (0 to below 1).
    """

    quick = True

    size: Size = 10
    wall_share: Annotated[float, Interval(ge=0, lt=1)] = 0.22

    def generate(self, split: Split, count: int, seed: int) -> list[Task]:
        """`count` different tasks. A board (walls, start, goal) is in one split only, whatever the seed. MarlError if
        the split has fewer."""
        rng = random.Random(f"{type(self).__name__} {split} {seed}")
        latest: dict[str, Task] = {}  # of a board that is drawn twice, with the landmark of the second time

        def draw() -> Task | None:
            task = self._draw(rng, split)
            if task is None or not self._fit(task):
                return None
            latest[task.id] = task
            return task

        return [latest[task.id] for task in distinct(draw, count, split, type(self).__name__)]

    def score(self, task: Task, answer: Any) -> float:
        """1 where the moves reach the goal, else 0. MarlError: the answer is no log."""
        return float(outcome(PathGame.of(task), log.read(answer)).solved)

    def _near(self, left: int) -> bool:
        """Whether a shortest walk of this length is accepted; size**2: there is none."""
        return left < self.size**2

    def _fit(self, task: Task) -> bool:
        """Whether a board is accepted as a task."""
        return True

    def _draw(self, rng: random.Random, split: Split) -> Task | None:
        named = cells(self.size)
        walls = sorted(cell for cell in named if rng.random() < self.wall_share)
        free = [cell for cell in named if cell not in walls]
        if len(free) < 3:
            return None
        start, goal, landmark = rng.sample(free, 3)
        board = Board(self.size, frozenset(walls), start, goal)
        shown = f"{self.size} start {start} goal {goal} walls {' '.join(walls)}"
        if not self._near(board.left(start)) or held_out(shown, HELD_OUT) != (split == "test"):
            return None
        data = {"size": self.size, "walls": walls, "start": start, "goal": goal, "landmark": landmark}
        return Task(id=f"at-plan-path {shown}", prompt=board.drawn(start), data=data)


class TinyPlanPath(PlanPath):
    """Small boards for tiny models, one token per word, with demonstrations.

    Only boards that need both agents: the right policies of `demonstrations` reach the goal together, but not if either
    agent is careless.

    Options:
        turns: maximum number of turns that the two need, with one move each; half of them is the minimum.
    """

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
        board, at = Board.of(task), str(task.data["start"])
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

    def demonstrations(self, agent: str, count: int, seed: int, good: float) -> list[tuple[str, str]]:
        """(observation, answer) pairs of mixed quality, on cells of training boards.

        A share `good` is right: the planner plans straight for the goal (it knows no walls), the executor makes the
        move that is free and nearest to the plan, the solo agent does both. Of the others, the careless planner and
        solo agent go for the landmark, and the careless executor and solo agent make the first move, wall or not.
        """
        (PLANNER, EXECUTOR, SOLO).index(agent)  # ValueError for an agent that the task does not have
        rng = random.Random(f"at-plan-path-tiny demonstrations {agent} {seed}")
        pairs: list[tuple[str, str]] = []
        while len(pairs) < count:
            (task,) = distinct(lambda: self._draw(rng, "train"), 1, "train", "at-plan-path-tiny")
            board = Board.of(task)
            at = rng.choice([cell for cell in cells(self.size) if cell not in board.walls and cell != board.goal])
            right = rng.random() < good
            straight = bee_line(at, board.goal if right else str(task.data["landmark"]))
            if agent == PLANNER and straight:
                pairs.append((planner_sees(task, at), written(straight)))
            elif agent == EXECUTOR:
                plan = bee_line(at, rng.choice([cell for cell in cells(self.size) if cell != at]))
                pairs.append((executor_sees(task, at, plan), written([around(board, at, plan) if right else plan[0]])))
            elif agent == SOLO and straight:
                move = around(board, at, straight) if right else straight[0]
                pairs.append((solo_sees(task, at), written([move])))
        return pairs


def bee_line(at: str, to: str, most: int = 2) -> tuple[str, ...]:
    """The first `most` moves straight to a cell, ignoring walls: along the axis with the larger distance first."""
    (row, column), (goal_row, goal_column) = place(at), place(to)
    down, right = goal_row - row, goal_column - column
    moves: list[str] = []
    while (down or right) and len(moves) < most:
        if abs(down) >= abs(right):
            moves.append("D" if down > 0 else "U")
            down -= 1 if down > 0 else -1
        else:
            moves.append("R" if right > 0 else "L")
            right -= 1 if right > 0 else -1
    return tuple(moves)


def around(board: Board, at: str, plan: Sequence[str]) -> str:
    """The free move that ends nearest to the plan's target without walls; ties: the plan's first."""
    row, column = place(at)
    aim = (row + sum(STEPS[move][0] for move in plan), column + sum(STEPS[move][1] for move in plan))

    def worth(move: str) -> tuple[int, int]:
        end = place(str(board.beside(at, move)))
        named = plan.index(move) if move in plan else len(plan)
        return abs(end[0] - aim[0]) + abs(end[1] - aim[1]), named

    return min((move for move in STEPS if board.beside(at, move) is not None), key=worth, default=plan[0])


def written(moves: Sequence[str]) -> str:
    """Moves in words."""
    return " ".join(WORD[move] for move in moves)


def planner_sees(task: Task, at: str) -> str:
    """The planner's observation: cell, goal and an irrelevant landmark, without walls."""
    return f"at {at} goal {task.data['goal']} landmark {task.data['landmark']}"


def executor_sees(task: Task, at: str, plan: Sequence[str] | None) -> str:
    """The executor's observation: blocked moves and the plan, without the goal."""
    return f"blocked {blocked(task, at)} plan {written(plan) if plan else NONE}"


def solo_sees(task: Task, at: str) -> str:
    """The observations of both agents."""
    return f"{planner_sees(task, at)} blocked {blocked(task, at)}"


def blocked(task: Task, at: str) -> str:
    """The moves blocked by a wall or the edge, in words."""
    board = Board.of(task)
    return written([move for move in STEPS if board.beside(at, move) is None]) or NONE
