"""Shifted rewards: returns, advantages and the stop rule as in the authors' code, from rows and from sampled trees."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marl_verl_magrpo.algorithm import MAGRPO
from marl_verl_magrpo.joint_tree import JointTree
from marl_verl_testing import ScriptedContext, ScriptedPolicy
from marl_verl_testing.algorithm import row_of as row
from marl_verl_testing.rows import algorithm

from marl_verl.algo.advantage import RowTable
from marl_verl.episode import Act, Team, Workflow
from marl_verl.tasks import Task, TaskSet

GOLDEN = Path(__file__).resolve().parents[4] / "shared" / "golden" / "rewards" / "magrpo_shifted_returns.json"
CASES = {case["name"]: case for case in json.loads(GOLDEN.read_text())["cases"]}


class Paths(Workflow):
    """In each turn the agents say the numbers of their actions and propose their path, such as "01.11"."""

    agents: int = 2
    turns: int = 2
    aligned: bool = True

    async def run(self, task: Task, team: Team) -> str:
        path: list[str] = []
        for _ in range(self.turns):
            acted = await team.act({f"agent{n}": ".".join(path) for n in range(self.agents)})
            said = "".join(action.text for action in acted.values())
            path.append(said[0] if self.aligned else said)
            team.propose(".".join(path))
        return ".".join(path)


class Tabled(TaskSet):
    """Scores a path by a table."""

    quick = True

    rewards: dict[str, float]
    shift: float = -4.0

    def score(self, task: Task, answer: Any) -> float:
        return self.rewards[answer]


def number(act: Act, session: int, candidate: Any) -> str:
    return str(candidate).rpartition(".")[2]


def tree(inputs: dict[str, Any]) -> RowTable:
    """The rows that the sampler makes of the rewards of all joint actions."""
    aligned = inputs["joint"] == "aligned"
    policy = ScriptedPolicy({f"agent{n}": number for n in range(inputs["agents"])})
    workflow = Paths(inputs["agents"], inputs["turns"], aligned)
    tasks = Tabled(inputs["rewards"], inputs["shift"])
    sampler = JointTree(inputs["K"], joint=inputs["joint"], stop_above=inputs["stop_above"])
    sample = asyncio.run(sampler.sample(ScriptedContext(workflow, Task("q0", ""), policy, tasks=tasks)))
    assert not sample.failures
    assert [episode.score for episode in sample.episodes] == [inputs["rewards"][e.answer] for e in sample.episodes]
    return RowTable.from_rows([row(turn) for turn in sample.turns])


def values(table: RowTable, inputs: dict[str, Any]) -> list[tuple[Any, ...]]:
    """(agent, turn, what identifies the row, return, advantage) of the rows, sorted."""
    options = {name: inputs[name] for name in ("gamma", "mode", "normalize")} | {"joint_mode": inputs["joint"]}
    result = algorithm(MAGRPO, **options).compute(table)
    assert result.advantage.dtype == np.float64
    team = table.rewards["team"]
    return sorted(
        (table.agent.value(at), int(table.turn[at]), round(team[at], 6), round(ret, 6), round(advantage, 6))
        for at, (ret, advantage) in enumerate(zip(result.ret, result.advantage, strict=True))
    )


@pytest.mark.parametrize("name", CASES)
def test_returns_and_advantages_are_the_authors(name: str) -> None:
    case = CASES[name]
    inputs, expected, stored = case["inputs"], case["expected"], RowTable.from_rows(case["rows"])
    options = {name: inputs[name] for name in ("gamma", "mode", "normalize")} | {"joint_mode": inputs["joint"]}
    result = algorithm(MAGRPO, **options).compute(stored)
    np.testing.assert_allclose(result.ret, expected["returns"], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(result.advantage, expected["advantages"], rtol=1e-6, atol=1e-6)
    sampled = values(tree(inputs), inputs)
    np.testing.assert_allclose([r[2:] for r in sampled], [r[2:] for r in values(stored, inputs)], atol=2e-6)
    assert [r[:2] for r in sampled] == [r[:2] for r in values(stored, inputs)]


@given(st.lists(st.sampled_from([0.0, 1.5, 3.5, 4.0]), min_size=4, max_size=4), st.sampled_from([0.5, 0.9, 1.0]))
@settings(deadline=None, max_examples=30)
def test_with_a_shift_an_earlier_solution_never_has_the_lower_advantage(later: list[float], gamma: float) -> None:
    """Of two joint actions with the same reward: all below one solve the task in turn 2, those below the other later or
    never. Without a shift the other one may have the higher advantage."""
    inputs = {
        **{"turns": 3, "K": 2, "agents": 2, "joint": "aligned", "gamma": gamma, "shift": -4.0, "stop_above": -0.2},
        "mode": "mean",
    }
    early = {f"0.{path}": 4.0 for path in ("0", "1", "0.0", "0.1", "1.0", "1.1")}
    late = dict(zip((f"1.{path}" for path in ("0.0", "0.1", "1.0", "1.1")), later, strict=True))
    table = tree(inputs | {"rewards": {"0": 2.5, "1": 2.5, **early, "1.0": 3.0, "1.1": 2.5, **late}})
    result = algorithm(MAGRPO, **{"gamma": gamma}).compute(table)
    at = {table.node.value(i): result.advantage[i] for i in range(len(table))}
    assert at["0"] > at["1"]
    assert "0.0.0" not in at
    assert "1.0.0" in at


@pytest.mark.parametrize(("stop_above", "shift", "turns", "warns"), [(3.8, 0.0, 3, True), (3.8, 0.0, 2, False)])
def test_stops_at_positive_rewards_are_warned(stop_above: float | None, shift: float, turns: int, warns: bool) -> None:
    assert (JointTree(2, stop_above=stop_above).warning(Tabled({}, shift), [["a"]] * turns) is not None) == warns
