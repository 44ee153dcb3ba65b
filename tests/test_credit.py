"""Credit: Shapley's axioms, leave-one-out, and credits from a table against a slow reference."""

import asyncio
import json
import math
from collections import Counter
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marl_verl_sharp.counterfactual import coalitions, shapley
from marl_verl_testing import ScriptedContext, ScriptedPolicy, check_sampler

from marl_verl import Task, Workflow
from marl_verl.algo.advantage import RowTable
from marl_verl.algo.credit import TableCredit
from marl_verl.algo.rewards import Mix
from marl_verl.algo.sampling import Independent, drive
from marl_verl.episode import Team
from tests.batches import Rows, algorithm, episodes, find, joint_trees, keep, row, trees

GOLDEN = Path(__file__).resolve().parents[2] / "shared" / "golden"
PLAYERS = ["planner", "search", "code", "critic"]
Game = dict[frozenset[str], float]


@st.composite
def games(draw: st.DrawFn, most: int = 4) -> tuple[list[str], Game]:
    players = PLAYERS[: draw(st.integers(1, most))]
    return players, {c: float(draw(st.integers(-10, 10))) for c in coalitions(players)}


def credit(name: str, rows: Rows, **options: Any) -> np.ndarray:
    return find(TableCredit, name)(**options).compute(RowTable.from_rows(rows))


# Shapley's four axioms, which single his value out


@given(games())
def test_it_is_the_mean_over_all_orders_of_arrival(game: tuple[list[str], Game]) -> None:
    players, value = game
    shares = shapley(players, value)
    for player in players:
        gains = []
        for order in permutations(players):
            before = frozenset(order[: order.index(player)])
            gains.append(value[before | {player}] - value[before])
        assert shares[player] == pytest.approx(sum(gains) / math.factorial(len(players)), abs=1e-9)


def test_golden_games() -> None:
    case = json.loads((GOLDEN / "shapley_small.json").read_text())
    for game, wanted in zip(case["rows"], case["expected"], strict=True):
        value = {frozenset(name.split(",")) - {""}: v for name, v in game["values"].items()}
        assert shapley(game["players"], value) == pytest.approx(wanted, rel=case["rtol"])


# From a table


@given(rows=trees())
@settings(max_examples=20)
def test_c3_compares_a_subtree_with_its_siblings(rows: Rows) -> None:
    found = credit("c3", rows)

    def leaves(uid: str, node: str) -> list[float]:
        below = [r["node"] for r in rows if (r["uid"], r["parent"]) == (uid, node)]
        if not below:
            return [r["rewards"]["team"] for r in rows if (r["uid"], r["node"]) == (uid, node)]
        return [value for child in below for value in leaves(uid, child)]

    for i, r in enumerate(rows):
        same = [o for o in rows if all(o[c] == r[c] for c in ("uid", "parent", "agent")) and o is not r]
        mine = np.mean(leaves(r["uid"], r["node"]))
        wanted = mine - np.mean([np.mean(leaves(o["uid"], o["node"])) for o in same]) if same else 0.0
        assert found[i] == pytest.approx(wanted, abs=1e-9)


@given(rows=joint_trees(all_act=True))
@settings(max_examples=20)
def test_c3_gives_the_agents_of_a_joint_move_the_same(rows: Rows) -> None:
    found = credit("c3", rows)
    for one, other in zip(rows[::2], rows[1::2], strict=True):
        assert one["node"] == other["node"]
    np.testing.assert_allclose(found[::2], found[1::2])


def test_c3_as_an_advantage() -> None:
    method = algorithm("grpo", credit="c3", baseline="none", norm_by_std=False, group="siblings")
    rows = [{**row("q", 0, i, 0, "a", team=float(v)), "node": f"n{i}"} for i, v in enumerate([4, 1, 1])]
    result = method.compute(RowTable.from_rows(rows))
    np.testing.assert_allclose(result.advantage, [3.0, -1.5, -1.5])
    assert result.members(0).tolist() == [0, 1, 2]


@given(rows=episodes().map(lambda rows: keep(rows, episode="outcome", step="joint")))
@settings(max_examples=30)
def test_step_groups_are_gigpos_second_level(rows: Rows) -> None:
    result = algorithm("gigpo", gamma=0.5).compute(RowTable.from_rows(rows))
    np.testing.assert_array_equal(credit("step-groups", rows, gamma=0.5), dict(result.stages)["step advantage"])


@given(rows=episodes().flatmap(st.permutations))
@settings(max_examples=30)
def test_efficiency_is_the_turns_that_an_episode_saves(rows: Rows) -> None:
    turns = Counter((r["uid"], r["session"]) for r in rows)
    for value, r in zip(credit("efficiency", rows), rows, strict=True):
        others = [n for (uid, session), n in turns.items() if uid == r["uid"] and session != r["session"]]
        saved = np.mean(others) - turns[r["uid"], r["session"]] if others else 0.0
        assert value == pytest.approx(saved, abs=1e-9)


# Costs: amounts of an agent in its whole episode


@pytest.mark.parametrize(("returns", "wanted"), [("immediate", [2.0, 1.0, 2.0]), ("discounted", [2.0, 1.0, 2.0])])
def test_a_cost_counts_once_in_a_return(returns: str, wanted: list[float]) -> None:
    """Two acts of a, one of b: on every row of its agent, or on its last one where returns sum turns."""
    for name in ("acts", "tool"):
        costs = algorithm("grpo", rewards={"name": "weights", "weights": {name: 1.0}}, returns=returns, baseline="none")
        rows = [row("q", 0, i, i // 2, agent, **{name: wanted[i]}) for i, agent in enumerate("aba")]
        assert costs.compute(RowTable.from_rows([{**r, "team_reward": 0.0} for r in rows])).ret.tolist() == wanted


def test_costs_are_the_same_from_every_prefix_and_in_any_order_of_arrival() -> None:
    class Chat(Workflow):
        async def run(self, task: Task, team: Team) -> str:
            told = await team.act({"a": "question", "c": "question"})
            await team["b"].call(len, "text")
            return (await team["b"].act(f"a says:\n{told['a'].text}")).text

    task, mix = Task("t", "", {}), Mix(team=1.0, read=-0.1, calls=1)
    policy = ScriptedPolicy({"a": "five words of an answer", "b": "yes", "c": "no"})
    first = check_sampler(Independent(episodes=1), Chat(), task, policy, mix=mix).episodes[0]
    read = {"b": first.turns[0].length}
    for turn in first.turns:
        assert turn.rewards == {"read": pytest.approx(read.get(turn.agent, 0.0)), "calls": float(turn.agent == "b")}

    async def rewards(count: int) -> list[Any]:
        context = ScriptedContext(Chat(), task, policy, mix=mix, order=count)
        async with context.start(0, first.journal.prefix(count)) as run:
            await drive(run, lambda act: context.act(act, 0))
            return [(turn.agent, turn.rewards) for turn in (await context.finish(run, 0)).turns]

    for count in range(len(first.journal) + 1):
        assert asyncio.run(rewards(count)) == [(turn.agent, turn.rewards) for turn in first.turns]
