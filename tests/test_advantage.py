"""The row table and the generic advantage: properties, singletons, mixing, and user errors."""

import json

import numpy as np
import pytest
from marl_verl_at_grpo.algorithm import AT_GRPO
from marl_verl_baselines.presets import GRPO_TRAJECTORY_MEAN as GRPO
from marl_verl_testing.rows import algorithm

from marl_verl.algo.advantage import RowTable
from marl_verl.errors import MarlError
from marl_verl.trainer.metrics import agent_statistics
from tests.batches import advantage, row

# Groups of one, constant groups


def test_singleton_policies() -> None:
    rows = [row("q0", 0, 0, 0, "a", team=1.0), row("q0", 1, 0, 0, "a", team=0.0), row("q1", 0, 0, 0, "a", team=0.5)]
    alone = {s: advantage(algorithm(AT_GRPO, singleton=s), rows)[2] for s in ("zero", "raw")}
    assert alone == {"zero": 0.0, "raw": pytest.approx(0.5, rel=1e-5)}
    assert advantage(algorithm(AT_GRPO, **{"singleton": "raw", "norm_by_std": False}), rows)[2] == 0.5
    rows[2]["rewards"]["team"] = 2.0
    batch = algorithm(AT_GRPO, singleton="batch").compute(RowTable.from_rows(rows))
    assert batch.advantage[2] == pytest.approx((2.0 - 1.0) / 1.0, rel=1e-5)
    np.testing.assert_allclose(batch.advantage[:2], [np.sqrt(0.5), -np.sqrt(0.5)], rtol=1e-5)


@pytest.mark.parametrize("eps", [1e-6, 1e-12, 0.0])
def test_a_constant_group_has_advantage_exactly_zero(eps: float) -> None:
    rows = [row("q", s, i, i, "a", team=0.1) for s in range(7) for i in range(1 + s % 3)]  # 0.1 * 3 / 3 != 0.1
    for method in (GRPO, AT_GRPO):
        assert not advantage(algorithm(method, eps=eps), rows).any()


def test_statistics_per_agent() -> None:
    rows = [
        *(row("q0", 0, 0, 0, "solver", role=1.0), row("q0", 1, 0, 0, "solver", role=0.0)),
        *(row("q1", 0, 0, 0, "solver", role=1.0), row("q1", 1, 0, 0, "solver", role=1.0)),
        row("q0", 0, 1, 0, "judge", role=1.0),  # session 1 ended before the judge
        *(row("q1", 0, 1, 0, "judge", role=0.0), row("q1", 1, 1, 0, "judge", role=0.0)),
        row("q2", 0, 0, 0, "judge", role=0.0),
    ]
    table = RowTable.from_rows(rows)
    found = agent_statistics(table, AT_GRPO.compute(table))
    assert list(found) == ["judge", "solver"]
    solver, judge = found["solver"], found["judge"]
    counted = ("rows", "groups", "zero_variance", "singles")
    assert [solver[name] for name in counted] == [4, 2, 0.5, 0.0]
    assert [judge[name] for name in counted] == [4, 3, pytest.approx(1 / 3), pytest.approx(2 / 3)]
    assert solver["reward"] == 0.75
    assert judge["advantage_mean"] == judge["advantage_std"] == 0.0
    by_session = agent_statistics(table, GRPO.compute(table))
    assert by_session["solver"]["singles"] == 0.0
    assert by_session["judge"]["singles"] == pytest.approx(1 / 3)  # q2: one session


# Mixing reward components


def test_rows_survive_the_table() -> None:
    rows = [
        row("q", 0, 0, 0, "a", team=1.0) | {"node": "n0", "policy": "p", "obs": "start", "slot": "0"},
        row("q", 1, 0, 0, "b", role=0.5) | {"parent": "n0", "policy": None, "obs": None, "slot": None},
    ]
    rows[0] |= {"invalid": True}
    rows[1] |= {"invalid": False}
    table = RowTable.from_rows(rows)
    assert table.to_rows() == rows
    assert RowTable.from_rows(json.loads(json.dumps(table.to_rows()))).to_rows() == rows
    assert table.key(1) == "q_1_0"


@pytest.mark.parametrize(
    ("reward", "message"),
    [(float("nan"), "mixed reward of row 'q0_1_0' .*agent 'a'.* is nan"), (1e200, "scale of row 'q0_.* too large")],
)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_reward_that_is_not_finite_or_too_large_is_refused(reward: float, message: str) -> None:
    rows = [row("q0", s, 0, 0, "a", team=reward if s == 1 else float(s), role=0.0) for s in range(3)]
    with pytest.raises(MarlError, match=message):
        AT_GRPO.compute(RowTable.from_rows(rows))


def test_options_change_a_copy_and_come_back_from_json() -> None:
    before = AT_GRPO.options()
    assert before["rewards"] == {"name": "marl_verl_at_grpo.algorithm:AlphaMix", "alpha": None}
    changed_ = algorithm(
        AT_GRPO, group=["uid", "agent"], alpha=2, sampler="independent", returns="discounted", gamma=0.5
    )
    assert changed_.options() == before | {
        "sampler": "independent",
        "rewards": before["rewards"] | {"alpha": 2},
        "advantage": before["advantage"] | {"group": ["uid", "agent"], "returns": {"name": "discounted", "gamma": 0.5}},
    }
    assert AT_GRPO.options() == before
    assert AT_GRPO.with_options({"sampler": None, "loss": None}) == AT_GRPO.with_options(None) == AT_GRPO
    # a new part begins with its own defaults
    path = "marl_verl_baselines.returns:PathSum"
    assert algorithm(changed_, returns="path_sum").options()["advantage"]["returns"] == {"name": path, "gamma": 1}
