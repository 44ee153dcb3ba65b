"""Role-conditioned advantages: the recurrence, what survives a checkpoint, and what zero-sum games imply."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marl_verl_self_play.role_conditioned import BASELINE, RoleConditioned
from marl_verl_testing import check_algorithm
from marl_verl_testing.rows import row
from omegaconf import OmegaConf

from marl_verl import MarlError
from marl_verl.algo.advantage import RowTable
from marl_verl.algo.algorithms import Algorithm
from marl_verl.algo.algorithms.algorithm import step_document
from marl_verl.config.parts import algorithm_named
from marl_verl.config.schedule import check_schedule
from marl_verl.inspect.explain import derive
from marl_verl.trainer.memory import AdvantageMemory

RAE = Algorithm(advantage=RoleConditioned())
Games = list[list[tuple[str, float]]]  # of a step: the turns of each game, as (role, outcome of the role)


def rows(games: Games) -> list[dict[str, Any]]:
    return [
        {**row("q", session, index, index, role), "team_reward": outcome}
        for session, turns in enumerate(games)
        for index, (role, outcome) in enumerate(turns)
    ]


def table(games: Games) -> RowTable:
    return RowTable.from_rows(rows(games))


def advantages(memory: AdvantageMemory, games: Games) -> list[float]:
    return [float(each) for each in memory.algorithm.compute(memory.recall(table(games))).advantage]


FIRST: Games = [[("one", 1.0), ("two", -1.0)], [("one", -2.0), ("two", 2.0), ("one", -2.0)]]
SECOND: Games = [[("one", 1.0), ("two", -1.0), ("one", 1.0)]]


def test_the_baseline_is_updated_before_it_is_subtracted() -> None:
    memory = AdvantageMemory(RAE)
    b1 = 0.05 * 1.0
    b2 = 0.95 * b1 + 0.05 * -2.0
    b3 = 0.95 * b2 + 0.05 * 1.0
    first = [1 - b1, -1 + b1, -2 - b2, 2 + b2, -2 - b2]
    assert advantages(memory, FIRST) == pytest.approx(first, abs=1e-12)
    assert advantages(memory, SECOND) == pytest.approx([1 - b3, -1 + b3, 1 - b3], abs=1e-12)
    assert memory.values == pytest.approx({"one": b3, "two": -b3}, abs=1e-12)
    assert advantages(AdvantageMemory(RAE), SECOND) == pytest.approx([0.95, -0.95, 0.95], abs=1e-12)


def test_a_resumed_run_has_the_same_advantages_to_the_digit(tmp_path: Path) -> None:
    whole, before, after = (AdvantageMemory(RAE) for _ in range(3))
    advantages(whole, FIRST)
    advantages(before, FIRST)
    before.save(tmp_path / "advantage", 1)
    after.load(tmp_path / "advantage")
    assert json.loads((tmp_path / "advantage" / "memory.json").read_text())["advantage"] == "role-conditioned"
    assert advantages(after, SECOND) == advantages(whole, SECOND)
    assert after.values == whole.values


@settings(max_examples=25)
@given(
    st.lists(
        st.lists(st.tuples(st.floats(-5, 5), st.lists(st.integers(0, 2), max_size=4)), min_size=1, max_size=5),
        min_size=1,
        max_size=4,
    )
)
def test_the_advantages_of_a_zero_sum_game_add_up_to_zero(steps: list[list[tuple[float, list[int]]]]) -> None:
    """Three roles, each of which acts at least once; the advantage of a role is that of any of its turns."""
    memory, roles = AdvantageMemory(RAE), ("a", "b", "c")
    for step in steps:
        games: Games = []
        for value, more in step:
            outcome = {"a": value, "b": value / 3, "c": -value - value / 3}
            games.append([(role, outcome[role]) for role in (*roles, *(roles[i] for i in more))])
        found, first = advantages(memory, games), 0
        for turns in games:
            own = {role: found[first + i] for i, (role, _) in enumerate(turns)}
            assert sum(own.values()) == pytest.approx(0, abs=1e-12)
            for i, (role, _) in enumerate(turns):
                assert found[first + i] == own[role]
            first += len(turns)


def test_the_mean_of_a_role_is_no_advantage() -> None:
    """First players that always win 1 have an advantage of alpha^n in game n, and second players its negative."""
    memory = AdvantageMemory(RAE)
    for game in range(1, 60):
        assert advantages(memory, [[("one", 1.0), ("two", -1.0)]]) == pytest.approx([0.95**game, -(0.95**game)])


def test_every_game_has_baselines_of_its_own() -> None:
    algorithm = Algorithm(advantage=RoleConditioned(game="game"))
    games = [{**each, "columns": {"game": float(each["session"])}} for each in rows(FIRST)]
    after = algorithm.recall(RowTable.from_rows(games), {})[1]
    assert after == pytest.approx({"0/one": 0.05, "0/two": -0.05, "1/one": -0.1, "1/two": 0.1})


def test_looking_ahead_and_rows_in_another_order_change_nothing() -> None:
    memory = AdvantageMemory(RAE)
    memory.recall(table(FIRST), keep=False)
    assert memory.values == {}
    plain = AdvantageMemory(Algorithm())
    assert plain.recall(given_table := table(FIRST)) is given_table
    order = [4, 2, 0, 3, 1]
    mixed = RowTable.from_rows([rows(FIRST)[i] for i in order])
    found, after = RAE.recall(mixed, {})
    assert after == RAE.recall(table(FIRST), {})[1]
    one = RAE.recall(table(FIRST), {})[0].numbers[BASELINE]
    assert np.array_equal(found.numbers[BASELINE], one[order])


def test_explain_recomputes_a_stored_step_with_its_baselines() -> None:
    memory = AdvantageMemory(RAE)
    advantages(memory, FIRST)
    now = memory.recall(table(SECOND))
    result = RAE.compute(now)
    document = json.loads(json.dumps(step_document("grpo", RAE, now, result, 2)))
    explained = derive(document)
    assert [record["advantage"] for record in explained.records()] == result.advantage.tolist()
    assert explained.records()[0]["columns"][BASELINE] == explained.records()[0]["baseline"]


def test_the_kit_accepts_it_and_recipes_name_it() -> None:
    check_algorithm(
        RoleConditioned(), [{**each, "uid": uid} for uid in ("p", "q") for each in rows(FIRST)], reach="batch"
    )
    options = {"name": "marl_verl_self_play.role_conditioned:RoleConditioned", "alpha": 0.5, "role": ["agent"]}
    named = algorithm_named("grpo", {"advantage": options}, "options")
    assert named.advantage == RoleConditioned(alpha=0.5)
    with pytest.raises(MarlError, match="'alpha' must be from 0 to below 1, got 1"):
        RoleConditioned(alpha=1.0)


def test_it_needs_steps_that_do_not_overlap() -> None:
    config = OmegaConf.create({"marl": {"schedule": {"mode": "async"}}})
    with pytest.raises(
        MarlError, match=r"'role-conditioned' depends on earlier steps, .*needs marl\.schedule\.mode=sync"
    ):
        check_schedule(config, None, RAE, None)  # type: ignore[arg-type]
