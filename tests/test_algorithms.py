"""Every shipped algorithm: the properties it must have, each part against a slow reference."""

import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marl_verl_testing import check_algorithm

from marl_verl import plugins
from marl_verl.algo.advantage import Returns, RowTable
from marl_verl.errors import MarlError
from tests.batches import FIT, SHIPPED, Rows, advantage, algorithm, compute, episodes, find, joint_trees, keep, row

every = pytest.mark.parametrize("name", SHIPPED)


def returns(name: str, rows: Rows, component: str = "team", **options: Any) -> np.ndarray:
    table = RowTable.from_rows(rows)
    return find(Returns, name)(**options).compute(table, table.rewards[component])


# returns that look at other rows of the session (MAGRPO's later turns, SHARP's workers) cross groups, but never tasks
INSIDE_A_GROUP = [name for name in SHIPPED if not name.startswith(("magrpo", "sharp"))]


@every
@given(data=st.data())
@settings(max_examples=5)
def test_it_keeps_what_every_algorithm_promises(name: str, data: st.DataObject) -> None:
    reach = "group" if name in INSIDE_A_GROUP else "task"
    result = check_algorithm(algorithm(name), data.draw(FIT[name]), reach=reach, seed=data.draw(st.integers(0, 99)))
    if name != "gigpo":  # whose return is the sum of its two levels
        np.testing.assert_array_equal(result.stages[-1][1], result.ret)


WITH_A_STD: dict[str, dict[str, Any]] = {
    "magrpo": {"normalize": True, "min_std": 1e-300},
    "magrpo-sessions": {"normalize": True, "min_std": 1e-300},
    "gigpo": {"mode": "mean_std_norm", "eps": 0.0, "episode_singleton": "zero"},
    "dr-mas": {"penalty": 0.0, "singleton": "zero", "eps": 0.0},
    "mars2-plus": {"overlong": None, "eps": 0.0},
}


@every
@given(data=st.data(), factor=st.sampled_from([2.0**-7, 4.0, 1024.0]))
@settings(max_examples=10)
def test_the_scale_of_rewards_does_not_matter_with_a_std(name: str, data: st.DataObject, factor: float) -> None:
    rows = data.draw(FIT[name])
    method = algorithm(name, **WITH_A_STD.get(name, {"singleton": "zero", "eps": 0.0}))
    scaled = [{**r, "rewards": {c: factor * v for c, v in r["rewards"].items()}} for r in rows]
    scaled = [{**r, "value": factor * r.get("value", 0.0)} for r in scaled]
    np.testing.assert_allclose(advantage(method, scaled), advantage(method, rows), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("options", "rewards", "advantages"),
    [
        ({"baseline": "none"}, [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]),
        ({"scale_group": ["agent"]}, [1.0, 0.0, 0.5], [0.5, -0.5, 0.0]),
    ],
)
def test_without_spread_nothing_scales(options: dict[str, Any], rewards: list[float], advantages: list[float]) -> None:
    rows = [row("q", i, 0, 0, f"agent{i}", team=r) for i, r in enumerate(rewards)]
    np.testing.assert_allclose(advantage(algorithm("grpo", **options), rows), advantages, rtol=1e-5)


def test_a_node_with_two_parents_and_one_with_two_rewards_are_refused() -> None:
    def at(index: int, agent: str, node: str, parent: str | None, team: float) -> dict[str, Any]:
        return {**row("q", 0, index, 0, agent, team=team), "node": node, "parent": parent}

    roots = [at(0, "a", "n0", None, 1.0), at(1, "a", "n1", None, 1.0)]
    method = algorithm("magrpo", returns="tree_mean", group="siblings")
    with pytest.raises(MarlError, match="node 'n2' of task 'q' has more than one parent"):
        advantage(method, [*roots, at(2, "a", "n2", "n0", 1.0), at(3, "b", "n2", "n1", 1.0)])
    with pytest.raises(MarlError, match=r"'q_0_2' and 'q_0_3' are one joint action and have 1 and 5"):
        advantage(method, [*roots, at(2, "a", "n2", "n0", 1.0), at(3, "b", "n2", "n0", 5.0)])


def test_an_agent_in_two_lanes_of_a_crossed_node_counts_once() -> None:
    earned = {"n0.0": 1.0, "n0.1": 0.0, "n0.2": 0.5, "n0.3": 2.0}
    held = [["n0.0", "n0.1"], ["n0.2", "n0.3"], ["n0.0", "n0.2"], ["n0.1", "n0.3"]]  # two actions in each of two lanes
    rows = [{**row("q", 0, 0, 0, "c", team=0.25), "node": "n0"}]
    for i, nodes in enumerate(held):
        reward = sum(earned[node] for node in nodes)
        rows.append({**row("q", 0, i + 1, 0, "t", team=reward), "node": "+".join(nodes), "parent": "n0"})
    assert returns("tree_mean", rows)[0] == 0.25 + sum(earned.values()) / 4


def test_the_team_reward_counts_once_for_an_agent_in_two_lanes() -> None:
    rows = [{**row("q", 0, i, 0, "t"), "slot": slot, "team_reward": 2.0} for i, slot in enumerate("ab")]
    found = algorithm("grpo", returns="discounted", baseline="none", norm_by_std=False)
    assert advantage(found, rows).tolist() == [2.0, 2.0]  # on the last of all its turns, and once


def test_gigpo_refuses_rewards_that_are_not_shared() -> None:
    rows = [{**row("q", 0, i, 0, a, episode=1.0, step=float(i)), "obs": "x"} for i, a in enumerate("ab")]
    with pytest.raises(MarlError, match=r"'q_0_0' and 'q_0_1' are one turn of the environment and have 0 and 1"):
        advantage(algorithm("gigpo"), rows)
    for r in rows:
        r["rewards"] = {"episode": float(r["index"]), "step": 0.0}
    with pytest.raises(MarlError, match=r"'q_0_0' and 'q_0_1' are of one session, .* and have 0 and 1"):
        advantage(algorithm("gigpo"), rows)


@given(rows=episodes(), gamma=st.sampled_from([0.0, 0.5, 1.0]))
@settings(max_examples=20)
def test_sums_to_go(rows: Rows, gamma: float) -> None:
    own, joint = returns("discounted", rows, gamma=gamma), returns("path_sum", rows, "joint", gamma=gamma)
    for i, r in enumerate(rows):
        session = [o for o in rows if (o["uid"], o["session"]) == (r["uid"], r["session"])]
        later = [o for o in session if o["turn"] >= r["turn"]]
        mine = [o for o in later if o["agent"] == r["agent"]]
        assert own[i] == pytest.approx(sum(gamma**k * o["rewards"]["team"] for k, o in enumerate(mine)), abs=1e-12)
        turns = {o["turn"]: o["rewards"]["joint"] for o in later}
        assert joint[i] == pytest.approx(sum(gamma ** (t - r["turn"]) * v for t, v in turns.items()), abs=1e-12)


# Baselines and scales


@given(rows=FIT["grpo"], baseline=st.sampled_from(["mean", "leave-one-out", "max", "none"]), std=st.booleans())
@settings(max_examples=20)
def test_baselines(rows: Rows, baseline: str, std: bool) -> None:
    result = compute(algorithm("grpo", baseline=baseline, norm_by_std=std, eps=0.5, singleton="zero"), rows)
    for i in range(len(rows)):
        mine, others = result.ret[i], result.ret[[j for j in result.members(i) if j != i]]
        if not len(others):
            assert result.advantage[i] == (mine if baseline == "none" and not std else 0.0)
            continue
        means = {"mean": np.mean([mine, *others]), "leave-one-out": np.mean(others)}
        wanted = {**means, "max": max(mine, *others), "none": 0.0}[baseline]
        sigma = np.std([mine, *others], ddof=1)
        scale = (sigma if sigma > 0 or mine == wanted else 1.0) + 0.5 if std else 1.0
        assert result.advantage[i] == pytest.approx((mine - wanted) / scale, abs=1e-9)


def test_the_scale_may_come_from_other_groups() -> None:
    """REINFORCE++ with a group baseline: A = (R - mean_group) / std_batch(R - mean_group)."""
    rows = [row(q, s, 0, 0, "a", team=v) for q, vs in (("p", (0.0, 1.0)), ("q", (5.0, 9.0))) for s, v in enumerate(vs)]
    result = compute(algorithm("grpo", scale_group="batch", eps=0.0), rows)
    deviation = np.array([-0.5, 0.5, -2.0, 2.0])
    np.testing.assert_allclose(result.advantage, deviation / deviation.std(ddof=1))
    with pytest.raises(MarlError, match="'scale_group' with sample 'session_mean'"):
        algorithm("grpo-trajectory-mean", scale_group=["agent"])


@given(rows=episodes())
@settings(max_examples=20)
def test_sessions_may_weigh_the_same(rows: Rows) -> None:
    """w = (tokens of the policy / its sessions) / tokens of the session."""
    rows = [{**r, "policy": r["agent"], "length": 1 + place % 5} for place, r in enumerate(rows)]
    plain, weighted = (advantage(algorithm("grpo", session_weight=unit), rows) for unit in (None, "tokens"))
    tokens: Counter[tuple[str, str, int]] = Counter()
    for r in rows:
        tokens[r["policy"], r["uid"], r["session"]] += r["length"]
    for place, r in enumerate(rows):
        mean = np.mean([count for (name, _, _), count in tokens.items() if name == r["policy"]])
        assert weighted[place] == pytest.approx(mean / tokens[r["policy"], r["uid"], r["session"]] * plain[place])


# Each preset computes what its straight-line reference computes, on random rows


@pytest.mark.parametrize("name", plugins.load().names("algorithms"))
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_a_preset_is_its_reference(name: str, data: st.DataObject) -> None:
    rows = data.draw(joint_trees() if name == "magrpo" else FIT.get(name, FIT["grpo"]))
    if name in ("remax", "gdpo"):
        rows = [{**row, "columns": {"greedy": row["value"]}} for row in keep(rows, team="team")]
    if name == "mars2-plus":
        rows = [{**row, "length": 32768 - 60 * row["length"]} for row in rows]
    order = data.draw(st.permutations(range(len(rows))))
    result = algorithm(name).compute(RowTable.from_rows([rows[i] for i in order]))
    module: Any = sys.modules[str(plugins.load().entry("algorithms", name).target).partition(":")[0]]
    np.testing.assert_allclose(result.advantage[np.argsort(order)], module.REFERENCES[name](rows), rtol=1e-6, atol=1e-6)
