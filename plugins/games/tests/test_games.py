"""Sokoban, Sudoku and Plan-Path as games: states, moves, tasks, workflows, and rewards against values by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from marl_verl_games.game import play
from marl_verl_games.game_rewards import sokoban, sokoban_program, sudoku, sudoku_program
from marl_verl_games.game_workflows import EXECUTOR, PLANNER, PLAYER, GamePlannerExecutor, GamePlayer, game_of
from marl_verl_games.plan_path import PlanPath
from marl_verl_games.plan_path_rewards import plan_path, plan_path_program
from marl_verl_games.sokoban import Sokoban, SokobanTasks
from marl_verl_games.sudoku import Sudoku, SudokuTasks

from marl_verl import Task, TaskSet
from marl_verl.episode import Act, Action, Episode, Journal, Turn
from marl_verl.errors import MarlError
from marl_verl.options import build
from marl_verl.testing import ScriptedPolicy, check_task, check_workflow, shown

# two boxes on one line: push right (box on goal), then the lower one
ROWS = ["######", "#....#", "#@BO.#", "#.BO.#", "#....#", "######"]
BOXES = Task("boxes", "", {"game": "sokoban", "rows": ROWS, "shortest": 4})
SOLUTION = [[1, 2, 3, 4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]]
PUZZLE = [[1, 2, 3, 0], [3, 4, 1, 2], [2, 1, 0, 3], [0, 3, 2, 0]]
GRID = Task("grid", "", {"game": "sudoku", "puzzle": PUZZLE, "solution": SOLUTION})
CORRIDOR = Task("corridor", "", {"size": 3, "walls": ["b2", "c2"], "start": "c1", "goal": "c3", "landmark": "a1"})
SETS = [SokobanTasks(), SudokuTasks(), SudokuTasks(size=9, min_empty=20, max_empty=40), PlanPath()]
ids = [type(each).__name__ + str(each.size) for each in SETS]


@pytest.mark.parametrize("tasks", SETS, ids=ids)
def test_the_kit_accepts_the_task_sets(tasks: TaskSet) -> None:
    answers = ["p moves U R", "p moves r1c1=1 r1c2=2", "p plans ?", "a plans D\nb moves L L", ""]
    if not isinstance(tasks, PlanPath):
        for task in check_task(tasks, lambda _: answers, count=4):
            assert not game_of(task).solved
        return
    check_task(tasks, lambda _: [answers[0], *answers[2:]], count=4)


def test_every_sokoban_can_be_solved_and_a_solution_scores() -> None:
    tasks = SokobanTasks()
    for task in [*tasks.generate("train", 15, 3), *tasks.generate("test", 5, 3)]:
        game = Sokoban.of(task.data["rows"])
        solution = game.shortest()
        assert solution is not None
        assert len(solution) == task.data["shortest"]
        assert tasks.score(task, f"p moves {' '.join(solution)}") == 1.0
        assert game.drawn() == task.prompt == "\n".join(task.data["rows"])
        assert (game.size, len(game.boxes)) == (6, 2)


@pytest.mark.parametrize("tasks", SETS[1:3], ids=ids[1:3])
def test_every_sudoku_has_its_solution(tasks: SudokuTasks) -> None:
    for task in [*tasks.generate("train", 5, 3), *tasks.generate("test", 2, 3)]:
        cells = [(r, c) for r, row in enumerate(task.data["puzzle"]) for c, digit in enumerate(row) if not digit]
        assert tasks.min_empty - 3 <= len(cells) <= tasks.max_empty
        moves = " ".join(f"r{r + 1}c{c + 1}={task.data['solution'][r][c]}" for r, c in cells)
        assert tasks.score(task, f"p moves {moves}") == 1.0
        assert tasks.score(task, f"p moves {moves.rpartition(' ')[0]}") == 0.0


def test_a_dead_board_has_no_solution() -> None:
    assert Sokoban.of(["#####", "#B..#", "#.@.#", "#..O#", "#####"]).shortest() is None
    assert Sokoban.of(ROWS).shortest() == ["R", "L", "D", "R"]


def test_moves_of_sokoban_and_why_they_are_refused() -> None:
    game = Sokoban.of(ROWS)
    assert game.legal() == "U, D, R"
    found = play(game, ["L", "R", "R", "R", "D"])
    assert found.refused == (("L", "a wall"), ("R", "the box cannot move"))
    assert found.game.drawn().splitlines()[2:4] == ["#..OB#", "#.B+.#"]
    assert found.taken == ("R", "R", "D")
    assert play(game, ["r1c1=1"]).refused == (("r1c1=1", "no move of this game"),)


def test_moves_of_sudoku_and_why_they_are_refused() -> None:
    game = Sudoku.of(GRID.data)
    assert game.legal() == "r1c4=4, r3c3=4, r4c1=4, r4c4=1|4"
    found = play(game, ["r1c1=2", "r1c4=3", "r5c1=1", "r1c4=4", "r4c4=1"])
    assert [why for _, why in found.refused] == [
        "a cell of the puzzle",
        "3 is already in the row",
        "outside the 4x4 grid",
    ]
    assert found.taken == ("r1c4=4", "r4c4=1")
    assert found.game.drawn().splitlines()[0] == "1 2 3 4"


def reward_of(reward: Callable[..., float], task: Task, answer: str, finished: bool, agent: str = "p") -> float:
    own = [line for line in answer.splitlines() if line.startswith(f"{agent} ")]
    turn = len(own) - 1
    act = Act(agent, str(turn), turn, 0, ({"role": "user", "content": ""},))
    of_act = Turn.of(act, Action(""), "q", 0, agent)
    return float(reward(task, of_act, Episode("q", 0, task, [of_act], answer, False, Journal(), finished=finished)))


@pytest.mark.parametrize(
    ("answer", "finished", "value"),
    [
        ("p moves U", False, -0.01),
        ("p moves L", False, -0.05),
        ("p moves R", False, 1 - 0.01),
        ("p moves R R", False, 1 - 0.5 - 0.02),
        ("p moves R R R", False, 1 - 0.5 - 0.02 - 0.05),
        ("p moves R L D R", True, 2 - 0.04 + 10),
        ("p moves R L D R U U", True, 2 - 0.04 + 10),  # moves after the end are not made
        ("p moves R\np moves L D R", True, 1 - 0.03 + 10),
        ("p moves R\np moves L L", True, -0.01 - 0.05 - 5),
        ("p moves ?", False, -2),
        ("p moves R\np moves ?", True, -2 - 5),
        ("p plans R L D R", False, 2 - 0.04 + 10),
        ("q moves R\np plans R", False, -0.5 - 0.01),
    ],
)
def test_sokoban_by_hand(answer: str, finished: bool, value: float) -> None:
    assert reward_of(sokoban, BOXES, answer, finished) == pytest.approx(value)


@pytest.mark.parametrize(
    ("answer", "finished", "value"),
    [
        ("p moves r1c4=4", False, 1 / 4),
        ("p moves r1c4=4 r3c3=4", False, 2 / 4),
        ("p moves r4c4=4", False, -1 / 4),
        ("p moves r4c4=4 r4c4=1", False, 1 / 4),
        ("p moves r4c4=4\np moves r4c4=1", False, 2 / 4),
        ("p moves r1c1=2", False, -0.1),
        ("p moves r1c4=3 r1c4=4 r9c9=1", False, 1 / 4 - 0.2),
        ("p moves r1c4=4 r3c3=4 r4c1=4 r4c4=1", True, 1 + 1),
        ("p moves r1c4=4 r3c3=4 r4c1=4", True, 3 / 4 - 1),
        ("p moves ?", False, -2),
        ("p moves r1c4=4\np moves ?", True, -2 - 1),
        ("p plans r1c4=4 r3c3=4 r4c1=4 r4c4=1", False, 2),
    ],
)
def test_sudoku_by_hand(answer: str, finished: bool, value: float) -> None:
    assert reward_of(sudoku, GRID, answer, finished) == pytest.approx(value)


@pytest.mark.parametrize(
    ("answer", "finished", "value"),
    [
        ("p moves U", False, 1 - 0.01),
        ("p moves R", False, -0.1),
        ("p moves U U R", False, 3 - 0.03),
        ("p moves U D", False, -0.02),
        ("p moves U U R R D D", True, 6 - 0.06 + 1.5),
        ("p moves L U U R R D D", True, 6 - 0.06 - 0.1 + 1),
        ("p moves U U\np moves R R D D", True, 4 - 0.04 + 1.5),
        ("p moves U U\np moves D", True, -1 - 0.01 - 1),
        ("p moves ?", False, -2),
        ("p moves U\np moves ?", True, -2 - 1),
        ("p plans U U R R D D", False, 6 - 0.06 + 1.5),
    ],
)
def test_plan_path_by_hand(answer: str, finished: bool, value: float) -> None:
    assert reward_of(plan_path, CORRIDOR, answer, finished) == pytest.approx(value)


def test_a_program_without_moves_costs_one() -> None:
    for reward, task in ((sokoban_program, BOXES), (sudoku_program, GRID), (plan_path_program, CORRIDOR)):
        assert reward_of(reward, task, "p plans ?", False) == -1
    assert reward_of(sudoku_program, GRID, "p plans r1c4=4", False) == 1 / 4


MOVES: dict[str, tuple[Task, list[str]]] = {
    "sokoban": (BOXES, ['I push. ["R", "L"]', "down", '["R", "U"]']),
    "sudoku": (GRID, ["r1c4=4 r1c4=3", "none", '["r3c3=4", "r4c1=4", "r4c4=1"]']),
    "plan-path": (CORRIDOR, ['["U", "U", "L"]', "[]", '["R", "R", "D", "D"]']),
}


@pytest.mark.parametrize("game", MOVES)
def test_a_team_plays_with_feedback(game: str) -> None:
    task, moves = MOVES[game]
    policy = ScriptedPolicy({PLANNER: moves[0], EXECUTOR: moves})
    run = check_workflow(GamePlannerExecutor(turns=3), task, policy)
    seen = [shown(act) for act, _ in run.turns]
    assert all("Legal moves now: " in each and game_of(task).rules in each for each in seen)
    assert "The planner's moves: " in seen[1]
    assert "Turn 2 of 3." in seen[2]
    assert len(run.turns) == 6
    assert len(run.proposals) == 6
    tasks = {"sokoban": SokobanTasks(), "sudoku": SudokuTasks(), "plan-path": PlanPath()}[game]
    assert tasks.score(task, run.answer) == 1.0
    refused = {"sokoban": "", "sudoku": "r1c4=3 (3 is already in the row)", "plan-path": "L (a wall or the edge)"}[game]
    assert (f"Refused in the last turn: {refused}." in seen[2]) == bool(refused)


@pytest.mark.parametrize("game", MOVES)
def test_one_agent_plays_alone_and_stops_when_it_is_solved(game: str) -> None:
    task, moves = MOVES[game]
    run = check_workflow(GamePlayer(), task, ScriptedPolicy({PLAYER: moves}))
    assert len(run.turns) == 3
    assert ((PLAYER, "1") in run.invalid) == (game != "sokoban")


def test_moves_beyond_the_limit_are_dropped_and_marked() -> None:
    run = check_workflow(GamePlayer(turns=1, most_moves=2), CORRIDOR, ScriptedPolicy({PLAYER: "U U R R"}))
    assert (run.answer, run.invalid) == ("player moves U U", {(PLAYER, "0"): "more than 2 moves"})


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (SokobanTasks, {"size": 4}, "size must be 5 to 10, got 4"),
        (SokobanTasks, {"boxes": 0}, "boxes must be 1 to 4, got 0"),
        (SokobanTasks, {"near": 5, "far": 2}, "near must be 1 or more and at most far"),
        (SudokuTasks, {"size": 6}, "size must be 4 or 9, got 6"),
        (SudokuTasks, {"max_empty": 13}, "must be 1 to 12 in this order, got 6 and 13"),
        (SudokuTasks, {"min_emty": 3}, "did you mean 'min_empty'"),
    ],
)
def test_options_are_checked(kind: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(MarlError, match=message):
        build(kind, options, "marl.task.options")


def test_a_task_of_another_game_is_refused() -> None:
    with pytest.raises(MarlError, match=r"unknown game of task 'q' 'sokobann'.*did you mean 'sokoban'"):
        game_of(Task("q", "", {"game": "sokobann"}))
