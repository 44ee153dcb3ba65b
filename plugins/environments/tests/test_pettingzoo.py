"""PettingZoo's environments: turns, simultaneous moves, illegal ones, and environments that do not fit."""

import sys
import types
from typing import Any

import pytest

pytest.importorskip("pettingzoo")

from gymnasium.spaces import Discrete
from marl_verl_environments.pettingzoo import PettingZoo, PettingZooGame, PettingZooTasks
from marl_verl_testing import ScriptedPolicy, check_sampler, check_task, check_workflow, shown
from pettingzoo.classic import rps_v2

from marl_verl import Task, plugins

TICTACTOE = "pettingzoo.classic.tictactoe_v3"
TASK = Task("t", "t", {"env": TICTACTOE, "arguments": {}, "seed": 3})


def test_two_agents_play_in_turns() -> None:
    run = check_workflow(PettingZoo(), TASK, ScriptedPolicy({"cross": ["I take 0", "1", "2"], "nought": ["3", "4"]}))
    assert run.answer == {"outcomes": [1.0, -1.0], "seats": ["cross", "nought"], "finished": True}
    assert "Legal actions: 0, 1, 2, 3, 4, 5, 6, 7, 8" in shown(run.turns[0][0])
    assert "Legal actions: 1, 2, 3, 4, 5, 6, 7, 8" in shown(run.turns[1][0])
    assert not run.invalid


def test_an_illegal_move_becomes_the_first_legal_one() -> None:
    policy = ScriptedPolicy({"cross": ["0", "2", "4", "6"], "nought": ["0", "none", "5"]})
    run = check_workflow(PettingZoo(), TASK, policy)
    assert list(run.invalid) == [("nought", "0"), ("nought", "1")]
    assert "names no legal action: 1, 2, 3" in run.invalid["nought", "0"]
    assert run.answer["finished"]


def test_players_of_a_parallel_environment_move_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "parallel_rps", types.SimpleNamespace(parallel_env=rps_v2.parallel_env))
    task = Task("t", "t", {"env": "parallel_rps", "arguments": {"max_cycles": 3}, "seed": 1})
    policy = ScriptedPolicy({"left": ["0", "0", "2"], "right": ["2", "2", "2"]})  # rock beats scissors, twice
    run = check_workflow(PettingZoo(), task, policy)
    assert run.answer["finished"]
    assert run.answer["outcomes"] == [2.0, -2.0]
    assert {act.joint for act, _ in run.turns} == {0, 1, 2}


class Counted:
    """One player, whose actions are 5, 6 and 7."""

    possible_agents = agents = ("one",)
    seen = {"one": {"observation": "now", "action_mask": [0, 1, 1]}}

    def action_space(self, player: str) -> Any:
        return Discrete(3, start=5)

    def reset(self, seed: int) -> Any:
        return self.seen, {}

    def step(self, actions: Any) -> Any:
        return self.seen, actions, {}, {}, {}


def test_legal_actions_are_shown_as_they_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "counted", types.SimpleNamespace(parallel_env=Counted))
    game = PettingZooGame("counted", {}, seed=0)
    assert game.to_move() == {0: "now\nLegal actions: 6, 7"}
    assert game.play({0: "7"}) == {}
    assert game.outcomes() == [7.0]


def test_the_kit_accepts_the_task_set_and_samplers_replay_a_game() -> None:
    tasks = PettingZooTasks(env=TICTACTOE, side=0)

    answers = [{"outcomes": each, "seats": ["a", "b"], "finished": True} for each in ([1, -1], [0, 0], [-1, 1])]
    check_task(tasks, lambda task: answers, scores=(-1, 1))

    def choose(act: Any, session: int, candidate: int) -> str:
        return str((act.turn * 3 + session + (candidate if isinstance(candidate, int) else 0)) % 9)

    policy = ScriptedPolicy({"cross": choose, "nought": choose})
    for name in ("independent", "greedy-tree"):
        check_sampler(plugins.load().get("samplers", name)(), PettingZoo(moves=3), TASK, policy, tasks=tasks)
