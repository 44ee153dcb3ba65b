"""The presets, and the advantages of the paper's baselines on the same rows."""

from __future__ import annotations

import asyncio
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marl_verl_mars2 import plugin, symbols
from marl_verl_mars2.refine import RefineSymbols
from marl_verl_mars2.symbols import SymbolTests
from marl_verl_mars2.tree_search import TreeSearch
from marl_verl_testing import ScriptedContext, ScriptedPolicy
from marl_verl_testing.rows import Rows, algorithm, row, trees

from marl_verl.algo.advantage import RowTable
from marl_verl.errors import MarlError
from marl_verl.plugins import assemble


def test_the_plugin_registers_its_names_and_they_are_what_they_say() -> None:
    known = assemble({"mars2": plugin})
    assert known.get("tasks", "symbol-tests") is SymbolTests
    for name in ("mars2", "mars2-plus"):
        metrics = [metric.name for metric in known.get("algorithms", name).metrics]
        assert metrics == ["semantic-diversity", "algorithmic-diversity", "style-diversity", "refinement"]


def test_the_plus_is_three_changes() -> None:
    plain, plus = algorithm("mars2").options(), algorithm("mars2-plus").options()
    overlong = {"L": 32768, "C": 2048, "factor": 1.0}
    # the third is in the loss
    assert plus == {**plain, "loss": "gspo-tis", "advantage": {**plain["advantage"], "overlong": overlong}}


@given(rows=trees())
@settings(deadline=None, max_examples=20)
def test_without_shaping_a_node_s_return_is_its_own_reward_and_the_tree_still_one_group(rows: Rows) -> None:
    result = algorithm("mars2", gamma=0.0).compute(RowTable.from_rows(rows))
    assert list(result.ret) == [each["rewards"]["team"] for each in rows]
    by_tree = {(each["uid"], group) for each, group in zip(rows, result.group, strict=True)}
    assert len(by_tree) == len({uid for uid, _ in by_tree}) == len({group for _, group in by_tree})


def test_shaping_pays_a_repair_more_than_an_equal_first_attempt() -> None:
    tree = [
        {**row("q", 0, 0, 0, "a", team=0.0), "node": "0", "parent": None},
        {**row("q", 0, 1, 0, "a", team=1.0), "node": "1", "parent": None},
        {**row("q", 0, 2, 0, "b", team=1.0), "node": "2", "parent": None},
        {**row("q", 0, 3, 1, "b", team=1.0), "node": "3", "parent": "0"},
    ]
    shaped = algorithm("mars2").compute(RowTable.from_rows(tree))
    np.testing.assert_allclose(shaped.ret, [-0.5, 1.25, 1.25, 1.5])
    plain = algorithm("mars2", gamma=0.0).compute(RowTable.from_rows(tree))
    np.testing.assert_allclose(plain.advantage[1:], plain.advantage[1])


def searched(arms: list[str], agents: dict[str, str], nodes: int = 16) -> Counter[tuple[str, str]]:
    """(agent, policy) of the nodes of a tree in which every attempt fails."""
    task = SymbolTests().generate("train", 1, 0)[0]
    context = ScriptedContext(RefineSymbols(), task, ScriptedPolicy(agents), tasks=SymbolTests())
    found = asyncio.run(TreeSearch(nodes, arms=arms).sample(context))
    return Counter((turn.agent, turn.policy) for turn in found.turns)


def test_a_single_agent_makes_all_nodes_and_two_share_them() -> None:
    wrong = "0 0 0"
    assert searched(["shifter"], {"shifter": wrong}) == {("shifter", "shifter"): 16}
    both = searched(["shifter", "flipper"], {"shifter": wrong, "flipper": wrong})
    assert both.total() == 16
    assert min(both["shifter", "shifter"], both["flipper", "flipper"]) >= 3


def test_without_arms_the_agents_take_turns_along_a_path() -> None:
    task = SymbolTests().generate("train", 1, 0)[0]
    policy = ScriptedPolicy({"shifter": "0 0 0", "flipper": "1 1 1"})
    context = ScriptedContext(RefineSymbols(), task, policy, tasks=SymbolTests())
    for turn in asyncio.run(TreeSearch(16).sample(context)).turns:
        depth = len(turn.observation[0]["content"].split()) > 7
        assert turn.called is None
        assert depth or turn.agent == "shifter"


@given(st.integers(0, 20))
@settings(max_examples=5, deadline=None)
def test_twice_the_same_model_has_the_demonstrations_of_one_half(seed: int) -> None:
    """The baseline's second policy is trained as the first: no agent of the team is good at flips."""
    pairs = SymbolTests().demonstrations("shifter", 400, seed, 0.7)
    flips = [
        word == symbols.wanted(kind, digit)
        for seen, answer in pairs
        if "attempt" not in seen
        for kind, digit, word in zip(seen.split()[1::2], seen.split()[2::2], answer.split(), strict=True)
        if kind in symbols.FLIPS
    ]
    assert np.mean(flips) < 0.2


@pytest.mark.parametrize(
    ("options", "message"), [({"gamma": -1.0}, "gamma' must be a number >= 0"), ({"lam": 2.0}, "lam' must")]
)
def test_shaping_that_makes_no_sense_is_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(MarlError, match=message):
        algorithm("mars2", **options)
