"""Diversity: the formulas hold as mathematics, and the metrics read the right texts of a tree."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marl_verl_mars2 import diversity, metrics
from marl_verl_mars2.refine import RefineSymbols
from marl_verl_mars2.symbols import SymbolTests
from marl_verl_mars2.tree_search import TreeSearch
from marl_verl_testing import ScriptedContext, ScriptedPolicy

from marl_verl import Task
from marl_verl.algo.sampling import Candidate, Sample
from marl_verl.episode import Act

TEXT = st.text(alphabet="ab 1=\n", max_size=12)
COUNTS = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 5), max_size=4).map(lambda found: Counter(found))

# semantic


@given(TEXT, TEXT, TEXT)
def test_the_distance_of_two_texts_is_a_metric_from_0_to_1(a: str, b: str, c: str) -> None:
    x, y, z = map(diversity.shingles, (a, b, c))
    assert 0 <= diversity.jaccard(x, y) <= 1
    assert diversity.jaccard(x, y) == diversity.jaccard(y, x)
    assert (diversity.jaccard(x, y) == 0) == (x == y)
    assert diversity.jaccard(x, z) <= diversity.jaccard(x, y) + diversity.jaccard(y, z) + 1e-12


@given(st.lists(TEXT, min_size=2, max_size=6), st.randoms())
def test_semantic_diversity_is_the_mean_over_pairs_in_any_order(texts: list[str], rng: object) -> None:
    pairs = list(itertools.combinations(texts, 2))
    mean = sum(diversity.jaccard(*map(diversity.shingles, pair)) for pair in pairs) / len(pairs)
    assert diversity.semantic(texts) == pytest.approx(mean)
    rng.shuffle(texts)  # type: ignore[attr-defined]
    assert diversity.semantic(texts) == pytest.approx(mean)


def test_semantic_diversity_knows_the_order_of_words_and_not_their_case() -> None:
    assert diversity.semantic(["4 2 5", "4  2 5"]) == 0
    assert diversity.semantic(["Sort the list", "sort THE list"]) == 0
    assert diversity.semantic(["4 2 5", "7 8 9"]) == 1
    assert diversity.semantic(["4 2 5", "5 2 4"]) == pytest.approx(1 - 3 / 7)  # {4, 2, 5}, and four pairs in a row
    assert diversity.semantic(["alone"]) is None


# algorithmic

SUM = """
import sys
def total(values: list[int]) -> int:
    '''The sum.'''
    result: int = 0
    for value in values:  # one after the other
        result += value
    return result
print(total(map(int, sys.stdin.read().split())))
"""
RENAMED = """
import sys
def f(xs):
    s = 0
    for x in xs:
        s += x
    return s
print(f(map(int, sys.stdin.read().split())))
"""


def test_names_layout_comments_and_annotations_make_no_other_algorithm() -> None:
    assert diversity.algorithm(SUM) == diversity.algorithm(RENAMED)
    assert diversity.algorithm(f"I add them up.\n```python\n{SUM}```\n") == diversity.algorithm(RENAMED)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("s += x", "s -= x"),  # another operation
        ("s += x", "s += s"),  # another variable
        ("map(int", "map(float"),  # what a program uses and does not bind keeps its name
        ("sys.stdin.read", "sys.stdin.readline"),
        ("s = 0", "s = 1"),
    ],
)
def test_another_algorithm_is_another_class(before: str, after: str) -> None:
    assert diversity.algorithm(RENAMED) != diversity.algorithm(RENAMED.replace(before, after))


def test_text_that_is_not_python_is_compared_by_words() -> None:
    assert diversity.algorithms(["4 2 5", " 4 2  5\n", "4 2 6", "Use a heap.", "use a HEAP ."]) == 3
    assert diversity.algorithm("x = (1") == diversity.algorithm("X = ( 1")
    assert diversity.algorithm("\x00") == diversity.algorithm("\x00 ")


@given(st.lists(st.sampled_from([SUM, RENAMED, "1 2", "1 3", "while True: pass"]), min_size=1, max_size=8))
@settings(max_examples=30)
def test_there_are_as_many_algorithms_as_classes(texts: list[str]) -> None:
    assert diversity.algorithms(texts) == len({text.replace(SUM, RENAMED) for text in texts})


# style


@given(COUNTS, COUNTS)
def test_jensen_shannon_is_symmetric_bounded_and_0_for_equal_distributions_only(p: Counter, q: Counter) -> None:
    found = diversity.jensen_shannon(p, q)
    if not p.total() or not q.total():
        assert found is None
        return
    assert found is not None
    assert 0 <= found <= 1
    assert found == pytest.approx(diversity.jensen_shannon(q, p))
    tripled = Counter({kind: 3 * count for kind, count in p.items()})
    assert diversity.jensen_shannon(p, tripled) == pytest.approx(0, abs=1e-12)
    if not set(+p) & set(+q):
        assert found == pytest.approx(1)
    same = all(p[kind] * q.total() == q[kind] * p.total() for kind in p.keys() | q.keys())
    assert same == (found < 1e-12)


def test_jensen_shannon_is_the_entropy_of_the_mean_less_the_mean_entropy() -> None:
    p, q = Counter(a=1, b=1), Counter(a=1)
    entropy = -(0.75 * math.log2(0.75) + 0.25 * math.log2(0.25))
    assert diversity.jensen_shannon(p, q) == pytest.approx(entropy - 0.5 * 1.0)


LINES = st.lists(st.sampled_from(["x = 1", "y = 2", "print(x)", "pass"]), min_size=2, max_size=6).map("\n".join)


@given(LINES, LINES)
def test_moves_account_for_every_line_of_parent_and_child(parent: str, child: str) -> None:
    found = diversity.moves(child, parent)
    kept_or_changed = found[diversity.KEPT] + found[diversity.CHANGED]
    assert kept_or_changed + found[diversity.ADDED] == len(child.splitlines())
    assert kept_or_changed + found[diversity.DROPPED] == len(parent.splitlines())
    assert diversity.moves(child, child) == Counter({diversity.KEPT: len(child.splitlines())})


def test_moves_of_one_line_are_counted_in_words() -> None:
    assert diversity.moves("4 2 5", "4 7 5") == Counter(kept=2, changed=1)
    assert diversity.moves("4 2", "4 2 5") == Counter(kept=2, dropped=1)
    assert diversity.moves("4 2 5", None) == Counter(written=3)
    assert diversity.moves("", None) == Counter()


def test_openings_are_the_first_words_of_lines() -> None:
    assert diversity.openings("First, sort.\n\n  first scan\n- then stop") == Counter({"first": 2, "-": 1})


def test_more_agents_are_compared_in_pairs() -> None:
    one, two, none = Counter(a=1), Counter(b=1), Counter()
    assert diversity.style([one, one, two]) == pytest.approx(2 / 3)
    assert diversity.style([one, two, none]) == pytest.approx(1)
    assert diversity.style([one]) is None
    assert diversity.style([none, one]) is None


# the metrics, of a tree

TASK = Task(
    "t", "tests after 3 across 7 before 0", {"tests": [["after", "3"], ["across", "7"], ["before", "0"]], "hidden": 1}
)


def tree(replies: dict[str, object], nodes: int = 8) -> Sample:
    context = ScriptedContext(RefineSymbols(), TASK, ScriptedPolicy(replies), tasks=SymbolTests())  # type: ignore[arg-type]
    return asyncio.run(TreeSearch(nodes, arms=list(replies)).sample(context))


def test_agents_with_equal_texts_have_no_diversity() -> None:
    found = tree({"shifter": "3 7 0", "flipper": "3 7 0"})
    assert metrics.SemanticDiversity().of_sample(found) == {"diversity/semantic": 0.0}
    assert metrics.AlgorithmicDiversity().of_sample(found) == {
        "diversity/algorithms": 1.0,
        "diversity/algorithms_share": 1 / 8,
    }
    assert metrics.StyleDiversity().of_sample(found)["diversity/style_openings"] == 0


def test_agents_with_different_texts_have_diversity() -> None:
    found = tree({"shifter": "4 7 9", "flipper": "3 2 0"})
    assert {turn.agent for turn in found.turns} == {"shifter", "flipper"}
    assert metrics.SemanticDiversity().of_sample(found)["diversity/semantic"] > 0.4
    assert metrics.AlgorithmicDiversity().of_sample(found)["diversity/algorithms"] == 2
    assert metrics.StyleDiversity().of_sample(found)["diversity/style_openings"] == 1


def test_refinements_of_own_and_other_attempts_are_distinguished() -> None:
    def flipper(act: Act, session: int, candidate: Candidate) -> str:
        return "4 2 9" if "attempt 4 7 9" in act.observation[0]["content"] else "3 2 0"

    found = tree({"shifter": "4 7 9", "flipper": flipper}, 24)
    logged = metrics.Refinement().of_sample(found)
    by_node = {turn.node: turn for turn in found.turns}
    pairs = [(by_node[turn.parent], turn) for turn in found.turns if turn.parent is not None]
    cross = [(a, b) for a, b in pairs if a.agent != b.agent]
    assert logged["refinement/share"] == len(pairs) / 24
    assert logged["refinement/cross"] == len(cross) / len(pairs)
    gains = [b.rewards["team"] - a.rewards["team"] for a, b in cross]
    assert max(gains) == 1  # a flipper that refines the shifter's attempt passes all tests
    assert logged["refinement/gain_cross"] == pytest.approx(sum(gains) / len(gains))
    assert logged["refinement/gain_own"] == 0
    assert logged["refinement/depth"] > 1
    for turn in found.turns:  # agents are distinguished, whether or not they share a policy
        turn.policy = "shared"
    assert metrics.Refinement().of_sample(found) == logged


def test_no_metrics_without_candidates() -> None:
    for metric in (
        metrics.SemanticDiversity(),
        metrics.AlgorithmicDiversity(),
        metrics.StyleDiversity(),
        metrics.Refinement(),
    ):
        assert metric.of_sample(Sample()) == {}
    alone = tree({"shifter": "4 7 9"})
    assert "diversity/semantic" in metrics.SemanticDiversity().of_sample(alone)
    assert metrics.StyleDiversity().of_sample(alone) == {}
    assert "refinement/gain_cross" not in metrics.Refinement().of_sample(alone)
