"""Metrics of a search tree: refinement across agents, and diversity of its candidates: text, algorithm and style.

MARS2 (arXiv 2602.07848) mentions semantic, algorithmic and reasoning-style diversity, but no formulas were found. The
definitions here are ours, for n candidates with texts x_1 .. x_n:

    semantic      mean over pairs i < j of J(x_i, x_j),   J(x, y) = 1 - |S(x) & S(y)| / |S(x) | S(y)|
                  S(x): the words of x (runs of letters and digits, or one other sign; lower case) and all pairs of
                  adjacent words. J is the Jaccard distance of these shingles (Broder 1997), a metric.
    algorithmic   k = number of equivalence classes of x_i ~ x_j
                  x ~ y: equal syntax trees without comments, docstrings, annotations and layout, after the names that
                  the program binds are numbered in order of first occurrence; for text that is not Python: equal words
                  in lower case
    style         JSD(p, q) = H((p + q) / 2) - (H(p) + H(q)) / 2 in bits, 0 to 1, of two agents' distributions p, q
                  over the first words of lines; for more than two agents the mean over pairs

Style diversity is above 0 even between two identical agents: compare it with a run that uses one model twice.
"""

import ast
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, pairwise, starmap

from marl_verl_sandbox import program_in

from marl_verl.algo.algorithms import Metric
from marl_verl.algo.sampling import Sample

WORD = re.compile(r"\w+|[^\w\s]")


def words(text: str) -> list[str]:
    """The words of a text in lower case, in order: runs of letters and digits, and every other sign as one word."""
    return WORD.findall(text.lower())


def shingles(text: str) -> frozenset[tuple[str, ...]]:
    sequence = words(text)
    return frozenset([*((word,) for word in sequence), *pairwise(sequence)])


def jaccard(one: frozenset[tuple[str, ...]], two: frozenset[tuple[str, ...]]) -> float:
    """1 - |one & two| / |one | two|: 0 for equal sets (including two empty sets), 1 for disjoint sets."""
    union = len(one | two)
    return 1 - len(one & two) / union if union else 0.0


def semantic(texts: Sequence[str]) -> float | None:
    """Mean distance over pairs of texts, 0 to 1; None for fewer than two texts."""
    return _mean(starmap(jaccard, combinations(map(shingles, texts), 2)))


def algorithm(text: str) -> str:
    """The equivalence class of a text, as a string: equal for texts with the same algorithm as defined above."""
    program = program_in(text) or text
    try:
        tree = ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "words " + " ".join(words(program))
    return "tree " + ast.dump(_anonymous(tree), annotate_fields=False)


SCOPES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
NAMED = {ast.Name: "id", ast.arg: "arg", **dict.fromkeys(SCOPES[1:], "name")}
"""Node -> the field with its name. Imported names are not replaced, because they identify a library."""


class _Plain(ast.NodeTransformer):
    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        return None if node.value is None else ast.Assign([node.target], node.value)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, SCOPES) and ast.get_docstring(node, clean=False) is not None and len(node.body) > 1:
            del node.body[0]
        for field in ("annotation", "returns"):
            if hasattr(node, field):
                setattr(node, field, None)
        return super().generic_visit(node)


def _anonymous(tree: ast.AST) -> ast.AST:
    """The names that a program binds replaced by numbers, in the order of their nodes; other names remain."""
    nodes = [*ast.walk(_Plain().visit(tree))]
    named = [(node, NAMED[type(node)]) for node in nodes if type(node) in NAMED]
    bound = {getattr(node, field) for node, field in named if isinstance(getattr(node, "ctx", ast.Store()), ast.Store)}
    bound_names = dict.fromkeys(name for name in (getattr(*place) for place in named) if name in bound)
    number = {name: f"_{i}" for i, name in enumerate(bound_names)}
    for node, field in named:
        setattr(node, field, number.get(getattr(node, field), getattr(node, field)))
    for node in nodes:
        if isinstance(node, ast.Global | ast.Nonlocal):
            node.names = [number.get(name, name) for name in node.names]
    return tree


def jensen_shannon(one: Counter[str], two: Counter[str]) -> float | None:
    """JSD in bits of two distributions, given as counts: 0 if equal, 1 if disjoint; None if one is empty."""
    if not one.total() or not two.total():
        return None
    divergence = 0.0
    for kind in sorted(one.keys() | two.keys()):
        p, q = one[kind] / one.total(), two[kind] / two.total()
        middle = (p + q) / 2
        divergence += sum(share * math.log2(share / middle) / 2 for share in (p, q) if share)
    return min(max(divergence, 0.0), 1.0)


def style(counts: Sequence[Counter[str]]) -> float | None:
    """Mean Jensen-Shannon divergence over pairs of agents; None if fewer than two agents have steps."""
    return _mean(starmap(jensen_shannon, combinations(counts, 2)))


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


class Diversity(Metric):
    """Diversity of a task's candidates: `diversity/semantic`, `.../algorithms` and `.../style`, as defined above."""

    def of_sample(self, sample: Sample) -> Mapping[str, float]:
        texts = [turn.action.text for turn in sample.turns]
        if not texts:
            return {}
        by_agent: dict[str, Counter[str]] = {}
        for turn in sample.turns:
            openings = (first for line in turn.action.text.splitlines() for first in words(line)[:1])
            by_agent.setdefault(turn.agent, Counter()).update(openings)
        values = {
            "diversity/semantic": semantic(texts),
            "diversity/algorithms": float(len(set(map(algorithm, texts)))),
            "diversity/style": style([*by_agent.values()]),
        }
        return {name: value for name, value in values.items() if value is not None}


class Refinement(Metric):
    """Refinements of own and other agents' attempts in a task's tree, and their gain.

    refinement/cross      share of the refinements that refine another agent's attempt
    refinement/gain_own   mean increase of component `team` when an agent refines its own attempt
    refinement/gain_cross the same when it refines another agent's attempt
    """

    def of_sample(self, sample: Sample) -> Mapping[str, float]:
        by_node = {turn.node: turn for turn in sample.turns}
        pairs = [(by_node[turn.parent], turn) for turn in sample.turns if turn.parent is not None]
        if not pairs:
            return {}
        gains: dict[str, list[float]] = {"own": [], "cross": []}
        for parent, child in pairs:
            gain = child.rewards["team"] - parent.rewards["team"]
            gains["own" if parent.agent == child.agent else "cross"].append(gain)
        means = {f"refinement/gain_{name}": sum(values) / len(values) for name, values in gains.items() if values}
        return {"refinement/cross": len(gains["cross"]) / len(pairs), **means}
