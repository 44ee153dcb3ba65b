"""Plan-Path: boards, moves, the log of a team, task sets and the local reward."""

from dataclasses import replace

import pytest
from marl_verl_games import log
from marl_verl_games.game import Played, executed, play
from marl_verl_games.plan_path import PathGame, moves_in
from marl_verl_games.tiny_plan_path import (
    EXECUTOR,
    PAY,
    PLANNER,
    TinyPlanPath,
    around,
    at_bee_line,
    at_bee_line_paid,
    at_plan_path,
    bee_line,
)

from marl_verl import Task
from marl_verl.episode import Act, Action, Episode, Journal, Turn
from marl_verl.errors import MarlError

# a corridor around a wall: from c1 up to b1, a1, right, and down to c3 are six moves
BOARD = PathGame(3, frozenset({"b2", "c2"}), start="c1", goal="c3", cell="c1")
TASK = Task("corridor", "", {"size": 3, "walls": ["b2", "c2"], "start": "c1", "goal": "c3", "landmark": "a1"})


def test_a_walk_stops_at_walls_goes_on_from_there_and_ends_at_the_goal() -> None:
    start = Played(PathGame.of(TASK))
    walk = play(start, ["R", "U", "D", "D", "L"])
    assert (walk.game.cell, walk.made, [move for move, _ in walk.refused]) == ("c1", 5, ["R", "D", "L"])
    assert play(start, "UURRDDLL") == Played(replace(BOARD, cell="c3"), 6)
    assert [BOARD.left(cell) for cell in ("c1", "b1", "a2", "c3", "b2")] == [6, 5, 3, 0, 9]
    assert replace(BOARD, cell="b1").board() == "...\n@#.\n.#G"


@pytest.mark.parametrize(("text", "found"), [("up right", ("U", "R")), ("go up", None), ("", None)])
def test_moves_are_read_from_nothing_but_moves(text: str, found: tuple[str, ...] | None) -> None:
    assert moves_in(text) == found


@pytest.mark.parametrize("answer", ["executor jumps U", "executor moves X"])
def test_an_answer_that_is_no_log_is_refused(answer: object) -> None:
    with pytest.raises(MarlError, match=r"a (line of a )?walk is"):
        log.read(answer)


def test_every_tiny_board_needs_both_agents_at_their_best() -> None:
    def reached(task: Task, planner: bool, executor: bool) -> bool:
        lines: list[log.Line] = []
        start = PathGame.of(task)
        for _ in range(4):
            at = executed(start, lines).game.cell
            plan = bee_line(at, start.goal if planner else task.data["landmark"])
            if plan:
                lines.append(log.Line(EXECUTOR, "moves", (around(start, at, plan) if executor else plan[0],)))
        return executed(start, lines).game.solved

    for task in TinyPlanPath().generate("test", 40, 0):
        assert [reached(task, *right) for right in ((True, True), (True, False), (False, True))] == [True, False, False]
        assert 2 <= PathGame.of(task).left(task.data["start"]) <= 4


def acted(turn: int, agent: str, *lines: str, finished: bool = False) -> tuple[Turn, Episode]:
    act = Act(agent, str(turn), turn, 0, ({"role": "user", "content": ""},))
    of_act = Turn(act, Action(""), "q", 0, agent)
    return of_act, Episode("q", 0, TASK, [of_act], "\n".join(lines), False, Journal(), finished=finished)


def reward(turn: int, agent: str, *lines: str, finished: bool = False) -> float:
    return at_plan_path(TASK, *acted(turn, agent, *lines, finished=finished))


def test_the_reward_is_that_of_the_acts_own_moves() -> None:
    assert reward(0, PLANNER, "planner plans U U") == pytest.approx(2 - 0.02)
    assert reward(0, EXECUTOR, "planner plans U U", "executor moves U R") == pytest.approx(1 - 0.01 - 0.1)
    assert reward(0, EXECUTOR, "planner plans U U", "executor moves ?") == pytest.approx(-0.1)
    before = ("planner plans U U", "executor moves U U", "planner plans R R")
    assert reward(1, EXECUTOR, *before, "executor moves L D") == pytest.approx(-1 - 0.01 - 0.1)
    assert reward(1, PLANNER, *before) == pytest.approx(2 - 0.02)


def test_the_goal_pays_and_a_shortest_walk_there_pays_more() -> None:
    straight = ("executor moves U U", "executor moves R R", "executor moves D D")
    assert reward(2, EXECUTOR, *straight, finished=True) == pytest.approx(2 - 0.02 + 1 + 0.5)
    astray = ("executor moves U D U U", "executor moves R R", "executor moves D D")
    assert reward(2, EXECUTOR, *astray, finished=True) == pytest.approx(2 - 0.02 + 1)
    refused = ("executor moves U U L", "executor moves R R", "executor moves D D")
    assert reward(2, EXECUTOR, *refused, finished=True) == pytest.approx(2 - 0.02 + 1)
    late = (*straight[:2], "executor moves R D D")
    assert reward(2, EXECUTOR, *late, finished=True) == pytest.approx(2 - 0.02 - 0.1 + 1)
    assert reward(1, EXECUTOR, straight[0], "executor moves L L", finished=True) == pytest.approx(-0.2 - 1)


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (["planner plans R R"], 2 - 0.02 + 1),
        (["planner plans R U"], 1 - 1 - 0.02),
        (["executor moves U U", "planner plans D R"], 2 - 0.02),
    ],
)
def test_a_plan_is_judged_on_the_board_without_walls(lines: list[str], found: float) -> None:
    assert at_bee_line(TASK, *acted(0, PLANNER, *lines)) == pytest.approx(found)
    assert at_bee_line_paid(TASK, *acted(0, PLANNER, *lines)) == pytest.approx(found + PAY)
    assert at_bee_line(TASK, *acted(0, PLANNER, *lines, finished=True)) == pytest.approx(found)
