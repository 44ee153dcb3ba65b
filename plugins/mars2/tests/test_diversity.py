"""Diversity: the formulas hold as mathematics, and the metrics read the right texts of a tree."""

import asyncio
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from marl_verl_mars2 import diversity
from marl_verl_mars2.novelty import Novelty, answer_sketch
from marl_verl_mars2.symbols import RefineSymbols, SymbolTests
from marl_verl_mars2.tree_search import TreeSearch
from marl_verl_testing import ScriptedContext, ScriptedPolicy
from marl_verl_testing.rows import Rows, episodes

from marl_verl import Task
from marl_verl.algo.advantage import RowTable
from marl_verl.algo.sampling import Candidate, Sample
from marl_verl.episode import Act

TEXT = st.text(alphabet="ab 1=\n", max_size=12)
COUNTS = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 5), max_size=4).map(lambda found: Counter(found))


@given(TEXT, TEXT, TEXT)
def test_the_distance_of_two_texts_is_a_metric_from_0_to_1(a: str, b: str, c: str) -> None:
    x, y, z = map(diversity.shingles, (a, b, c))
    assert 0 <= diversity.jaccard(x, y) <= 1
    assert diversity.jaccard(x, y) == diversity.jaccard(y, x)
    assert (diversity.jaccard(x, y) == 0) == (x == y)
    assert diversity.jaccard(x, z) <= diversity.jaccard(x, y) + diversity.jaccard(y, z) + 1e-12


RENAMED = """
import sys
def f(xs):
    s = 0
    for x in xs:
        s += x
    return s
print(f(map(int, sys.stdin.read().split())))
"""


def test_names_docstrings_and_annotations_make_no_other_class() -> None:
    other = RENAMED.replace("f(", "total(").replace("xs", "values").replace("x in", "one in").replace("+= x", "+= one")
    typed = "values: list[int]) -> int:\n    'Adds.'\n    unused: int"
    other = other.replace("values):", typed).replace("s = 0", "s: int = 0")
    assert diversity.algorithm(other) == diversity.algorithm(RENAMED)
    for before, after in (("sys", "os"), ("s += x", "s -= x"), ("sys.stdin.read", "sys.stdin.readline")):
        assert diversity.algorithm(RENAMED.replace(before, after)) != diversity.algorithm(RENAMED)


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
    assert all(p[kind] * q.total() == q[kind] * p.total() for kind in p.keys() | q.keys()) == (found < 1e-12)


TASK = Task(
    "t", "tests after 3 across 7 before 0", {"tests": [["after", "3"], ["across", "7"], ["before", "0"]], "hidden": 1}
)


def tree(replies: dict[str, object], nodes: int = 8) -> Sample:
    context = ScriptedContext(RefineSymbols(), TASK, ScriptedPolicy(replies), tasks=SymbolTests())  # type: ignore[arg-type]
    return asyncio.run(TreeSearch(nodes, arms=list(replies)).sample(context))


def test_agents_with_different_texts_have_diversity() -> None:
    found = tree({"shifter": "4 7 9", "flipper": "3 2 0"})
    assert {turn.agent for turn in found.turns} == {"shifter", "flipper"}
    values = diversity.Diversity().of_sample(found)
    assert values["diversity/semantic"] > 0.4
    assert (values["diversity/algorithms"], values["diversity/style"]) == (2, 1)


def test_refinements_of_own_and_other_attempts_are_distinguished() -> None:
    def flipper(act: Act, session: int, candidate: Candidate) -> str:
        return "4 2 9" if "attempt 4 7 9" in act.observation[0]["content"] else "3 2 0"

    found = tree({"shifter": "4 7 9", "flipper": flipper}, 24)
    logged = diversity.Refinement().of_sample(found)
    by_node = {turn.node: turn for turn in found.turns}
    pairs = [(by_node[turn.parent], turn) for turn in found.turns if turn.parent is not None]
    cross = [(a, b) for a, b in pairs if a.agent != b.agent]
    assert logged["refinement/cross"] == len(cross) / len(pairs)
    gains = [b.rewards["team"] - a.rewards["team"] for a, b in cross]
    assert max(gains) == 1  # a flipper that refines the shifter's attempt passes all tests
    assert logged["refinement/gain_cross"] == pytest.approx(sum(gains) / len(gains))
    assert logged["refinement/gain_own"] == 0
    for turn in found.turns:  # agents are distinguished, whether or not they share a policy
        turn.policy = "shared"
    assert diversity.Refinement().of_sample(found) == logged


def sketch(answer: str | None) -> dict[str, float]:
    return dict(answer_sketch(None, SimpleNamespace(answer=answer)))  # type: ignore[arg-type]


ANSWERS = st.lists(st.sampled_from(["4", "it is 4", "It IS 4", "5", "", None]), min_size=12, max_size=12)


@given(rows=episodes().flatmap(st.permutations), answers=ANSWERS)
def test_novelty_is_the_share_of_bits_in_which_sketches_differ(rows: Rows, answers: list[str | None]) -> None:
    """One answer per episode, of at most 3 tasks with 4 episodes."""
    columns = dict(zip(dict.fromkeys((r["uid"], r["session"]) for r in rows), map(sketch, answers), strict=False))
    sketches = {key: int(column["answer_sketch"]) for key, column in columns.items() if column}
    table = RowTable.from_rows([{**r, "columns": columns[r["uid"], r["session"]]} for r in rows])
    for value, r in zip(Novelty().compute(table), rows, strict=True):
        key = (r["uid"], r["session"])
        others = [bits for other, bits in sketches.items() if other[0] == key[0] and other != key]
        distances = [(sketches[key] ^ bits).bit_count() / 48 for bits in others] if key in sketches else []
        assert value == pytest.approx(np.mean(distances) if distances else 0.0, abs=1e-9)


def test_sketches_of_similar_answers_are_near() -> None:
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    texts = " ".join(words), " ".join(words).upper(), " ".join(words[:-1]), " ".join("abcdefghij")
    first, *others = (int(sketch(text)["answer_sketch"]) for text in texts)
    same, near, far = ((first ^ other).bit_count() / 48 for other in others)
    assert same == 0 < near < 0.25 < far
