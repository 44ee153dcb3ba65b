"""Sokoban, Sudoku and Plan-Path as games: states, moves, tasks, workflows, and rewards against values by hand."""

import itertools

import pytest
from marl_verl_games.game import Played, play
from marl_verl_games.game_workflows import GamePlayer, game_of
from marl_verl_games.game_workflows import game as reward_game
from marl_verl_games.log import answered, printed
from marl_verl_games.plan_path import PlanPath
from marl_verl_games.sokoban import Sokoban, SokobanTasks
from marl_verl_games.sudoku import Sudoku, SudokuTasks
from marl_verl_testing import ScriptedPolicy, check_task, check_workflow, shown

from marl_verl import Task, TaskSet
from marl_verl.episode import Act, Action, Episode, Journal, Turn

# two boxes on one line: push right (box on goal), then the lower one
ROWS = ["######", "#....#", "#@BO.#", "#.BO.#", "#....#", "######"]
BOXES = Task("boxes", "", {"game": "sokoban", "rows": ROWS})
SOLUTION = [[1, 2, 3, 4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]]
PUZZLE = [[1, 2, 3, 0], [3, 4, 1, 2], [2, 1, 0, 3], [0, 3, 2, 0]]
GRID = Task("grid", "", {"game": "sudoku", "puzzle": PUZZLE, "solution": SOLUTION})
CORRIDOR = Task("corridor", "", {"size": 3, "walls": ["b2", "c2"], "start": "c1", "goal": "c3", "landmark": "a1"})
SETS = [SokobanTasks(), SudokuTasks(), SudokuTasks(size=9, min_empty=20, max_empty=40)]
ids = [type(each).__name__ + str(each.size) for each in SETS]


@pytest.mark.parametrize("tasks", SETS, ids=ids)
def test_the_kit_accepts_the_task_sets(tasks: TaskSet) -> None:
    answers = ["p moves U R", "p moves r1c1=1 r1c2=2", "p plans ?", "a plans D\nb moves L L", ""]
    assert not any(game_of(task).solved for task in check_task(tasks, lambda _: answers, count=4))


@pytest.mark.parametrize("tasks", SETS[1:3], ids=ids[1:3])
def test_every_sudoku_has_its_solution(tasks: SudokuTasks) -> None:
    for task in [*tasks.generate("train", 5, 3), *tasks.generate("test", 2, 3)]:
        cells = [(r, c) for r, row in enumerate(task.data["puzzle"]) for c, digit in enumerate(row) if not digit]
        assert tasks.min_empty - 3 <= len(cells) <= tasks.max_empty
        moves = " ".join(f"r{r + 1}c{c + 1}={task.data['solution'][r][c]}" for r, c in cells)
        assert tasks.score(task, f"p moves {moves}") == 1.0
        assert tasks.score(task, f"p moves {moves.rpartition(' ')[0]}") == 0.0


def reward_of(task: Task, answer: str) -> float:
    """Of the last act of agent p."""
    number = len([line for line in answer.splitlines() if line.startswith("p ")]) - 1
    turn = Turn(Act("p", str(number), number, 0, ({"role": "user", "content": ""},)), Action(""), "q", 0, "p")
    return reward_game(task, turn, Episode("q", 0, task, [turn], answer, False, Journal(), finished=True))


def toward(*left: int) -> float:
    """0.99 Phi(s') - Phi(s) summed over moves, with these distances."""
    return sum(before - 0.99 * after for before, after in itertools.pairwise(left))


WALK = toward(2, 3, 4, 3, 2, 1, 0) - 0.06  # U U R R D D, around the walls


@pytest.mark.parametrize(
    ("task", "answer", "own", "shared"),
    [
        (BOXES, "p moves U", 0.1 * toward(2, 2) - 0.01, None),
        (BOXES, "p moves R", 1 - 0.01 + 0.1 * toward(2, 1), None),
        (BOXES, "p moves R L D R U U", 2 - 0.04 + 10 + 0.1 * toward(2, 1, 1, 1, 0), None),
        (BOXES, f"p moves {'L ' * 201}", 200 * (0.1 * toward(2, 2) - 0.05) - 5, None),
        (GRID, "p moves r1c4=4", 1 / 4, None),
        (GRID, "p moves r1c4=4 r3c3=4 r4c1=4 r4c4=1", 1 + 1, None),
        (CORRIDOR, "p moves U U R R D D", WALK + 1.5, None),
        (CORRIDOR, "p moves U U\np moves R R D D", toward(4, 3, 2, 1, 0) - 0.04 + 1.5, None),
        *((task, "p moves [?]", -1, -1) for task in (BOXES, GRID, CORRIDOR)),
        (CORRIDOR, "p plans U\nq moves U U", toward(2, 3) - 0.01, toward(2, 3, 4) - 0.02),
    ],
)
def test_rewards_by_hand(task: Task, answer: str, own: float, shared: float | None) -> None:
    assert reward_of(task, answer) == pytest.approx(own + (own if shared is None else shared))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('I go. #### ["U", "R"]', "U R"),
        ('not ["L"], I mean [\'U\', "R"]', "U R"),
        ("[U, R]", "U R"),
        ('["U", "up", "x"]', "U ! !"),
        ("[1, 2]", "[?]"),
        ('from [0, 3) go ["D"]', "D"),
    ],
)
def test_moves_are_the_last_list_of_an_answer(text: str, line: str) -> None:
    assert str(answered("p", "moves", text, game_of(CORRIDOR).move)) == f"p moves {line}"


@pytest.mark.parametrize(
    ("output", "path", "other"),
    [
        ("**Actions List**: ['U', 'D']", "U D", "U D"),
        ("['U']\nValueError: ['D'] is not in list", "U", "U"),
        ("**Actions List**: ['U', 'X']", "?", "U !"),
    ],
)
def test_moves_of_a_program_are_a_printed_list(output: str, path: str, other: str) -> None:
    moves = [printed("p", "plans", output, game_of(CORRIDOR).move, only) for only in (True, False)]
    assert [str(move) for move in moves] == [f"p plans {path}", f"p plans {other}"]


MOVES: dict[str, tuple[Task, list[str]]] = {
    "sokoban": (BOXES, ['I push. ["R", "L"]', "[D]", '["R", "U"]']),
    "sudoku": (GRID, ["[r1c4=4, r1c4=3]", "none", '["r3c3=4", "r4c1=4", "r4c4=1"]']),
    "plan-path": (CORRIDOR, ['["U", "U", "L"]', "[]", '["R", "R", "D", "D"]']),
}


@pytest.mark.parametrize("game", MOVES)
def test_an_agent_plays_with_feedback(game: str) -> None:
    task, moves = MOVES[game]
    run = check_workflow(GamePlayer(turns=3), task, ScriptedPolicy({"walker": moves}))
    seen = [shown(act) for act, _ in run.turns]
    assert all("Legal moves now: " in each and game_of(task).rules in each for each in seen)
    assert "Turn 2 of 3." in seen[1]
    assert len(run.turns) == len(run.proposals) == 3
    tasks = {"sokoban": SokobanTasks(), "sudoku": SudokuTasks(), "plan-path": PlanPath()}[game]
    assert tasks.score(task, run.answer) == 1.0
    refused = {"sokoban": "", "sudoku": "r1c4=3 (3 is already in the row)", "plan-path": "L (a wall or the edge)"}[game]
    assert (f"Refused in the last turn: {refused}." in seen[1]) == bool(refused)


def test_moves_of_sokoban_and_why_they_are_refused() -> None:
    game = Sokoban.of(BOXES)
    assert game.legal() == "U, D, R"
    after = play(Played(game), ["L", "R", "R", "R", "D"])
    assert after.refused == (("L", "a wall"), ("R", "the box cannot move"))
    assert after.game.drawn().splitlines()[2:4] == ["#..OB#", "#.B+.#"]
    assert after.made == 5
    assert play(Played(game), ["r1c1=1"]).refused == (("r1c1=1", "no move of this game"),)
    bare = Sokoban.of(Task("bare", "", {"rows": ["@B", "O."]}))  # the edge is a wall, too
    assert play(Played(bare), ["R", "U"]).refused == (("R", "the box cannot move"), ("U", "a wall"))


def test_moves_of_sudoku_and_why_they_are_refused() -> None:
    game = Sudoku.of(GRID)
    assert game.legal() == "r1c4=4, r3c3=4, r4c1=4, r4c4=1|4"
    after = play(Played(game), ["r1c1=2", "r1c4=3", "r5c1=1", "R1C4=4", "r4c4=1"])
    why = ["a cell of the puzzle", "3 is already in the row", "outside the 4x4 grid"]
    assert [reason for _, reason in after.refused] == why
    assert (after.made, after.game.drawn().splitlines()[0]) == (5, "1 2 3 4")
