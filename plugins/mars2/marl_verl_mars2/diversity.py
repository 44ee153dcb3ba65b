"""Diversity of the candidates for a task at three levels: text, algorithm and style.

MARS2 (arXiv 2602.07848) mentions semantic, algorithmic and reasoning-style diversity, but no formulas were found. The
definitions here are ours, for n candidates with texts x_1 .. x_n:

    semantic      mean over pairs i < j of J(x_i, x_j),   J(x, y) = 1 - |S(x) & S(y)| / |S(x) | S(y)|
                  S(x): the words of x (runs of letters and digits, or one other sign; lower case) and all pairs of
                  adjacent words. J is the Jaccard distance of these shingles (Broder 1997), a metric.
    algorithmic   k = number of equivalence classes of x_i ~ x_j, and the share k / n
                  x ~ y: equal syntax trees without comments, docstrings, annotations and layout, after the names that
                  the program binds are numbered in order of first occurrence; for text that is not Python: equal words
                  in lower case
    style         JSD(p, q) = H((p + q) / 2) - (H(p) + H(q)) / 2 in bits, 0 to 1, of two agents' distributions p, q
                  over kinds of step; for more than two agents the mean over pairs. The kinds of step are
                  moves: the lines that a refinement keeps, changes, adds or drops (words, if both texts have one
                  line); all lines of a first attempt are "written"
                  openings: the first word of each line

Style diversity is above 0 even between two identical agents, because each distribution is estimated from few samples.
Compare it with a run that uses the same model twice and has as many nodes, not with 0.
"""

import ast
import difflib
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from marl_verl_code.refine_code import program_in

WORD = re.compile(r"\w+|[^\w\s]")
KEPT, CHANGED, ADDED, DROPPED, WRITTEN = "kept", "changed", "added", "dropped", "written"


def words(text: str) -> list[str]:
    """The words of a text in lower case, in order: runs of letters and digits, and every other sign as one word."""
    return WORD.findall(text.lower())


def shingles(text: str) -> frozenset[tuple[str, ...]]:
    """The words of a text and all pairs of adjacent words."""
    found = words(text)
    return frozenset([*((word,) for word in found), *itertools.pairwise(found)])


def jaccard(one: frozenset[tuple[str, ...]], two: frozenset[tuple[str, ...]]) -> float:
    """1 - |one & two| / |one | two|: 0 for equal sets (including two empty sets), 1 for disjoint sets."""
    union = len(one | two)
    return 1 - len(one & two) / union if union else 0.0


def semantic(texts: Sequence[str]) -> float | None:
    """Mean distance over pairs of texts, 0 to 1; None for fewer than two texts."""
    sets = [shingles(text) for text in texts]
    pairs = [jaccard(one, two) for one, two in itertools.combinations(sets, 2)]
    return sum(pairs) / len(pairs) if pairs else None


def algorithm(text: str) -> str:
    """The equivalence class of a text, as a string: equal for texts with the same algorithm as defined above."""
    program = program_in(text) or text
    try:
        tree = ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "words " + " ".join(words(program))
    return "tree " + ast.dump(_Anonymous(tree).visit(tree), annotate_fields=False)


class _Anonymous(ast.NodeTransformer):
    """Replaces the names that a program binds by numbers, in order of first occurrence; other names remain."""

    def __init__(self, tree: ast.AST) -> None:
        self.bound = {name for node in ast.walk(tree) for name in _binds(node)}
        self.number: dict[str, str] = {}

    def _name(self, name: str) -> str:
        return self.number.setdefault(name, f"_{len(self.number)}") if name in self.bound else name

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self._name(node.id), node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg(self._name(node.arg), None)

    def visit_Global(self, node: ast.Global | ast.Nonlocal) -> ast.AST:
        return type(node)([self._name(name) for name in node.names])

    visit_Nonlocal = visit_Global

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if node.value is None:
            return None
        target, value = self.visit(node.target), self.visit(node.value)
        return ast.Assign([target], value)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        node.name, node.returns = self._name(node.name), None
        return self.visit_Module(node)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.name = self._name(node.name)
        return self.visit_Module(node)

    def visit_Module(self, node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        """Without its docstring."""
        if ast.get_docstring(node, clean=False) is not None and len(node.body) > 1:
            node.body = node.body[1:]
        return self.generic_visit(node)


def _binds(node: ast.AST) -> Iterable[str]:
    """The names that a node binds. Imported names are excluded, because they identify a library."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return (node.id,)
    if isinstance(node, ast.arg):
        return (node.arg,)
    return (node.name,) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else ()


def algorithms(texts: Sequence[str]) -> int:
    """The number of equivalence classes among the texts."""
    return len({algorithm(text) for text in texts})


def openings(text: str) -> Counter[str]:
    """First word of a line -> number of lines; lines without a word are not counted."""
    return Counter(found[0] for line in text.splitlines() if (found := words(line)))


def moves(text: str, parent: str | None) -> Counter[str]:
    """Kind of move -> number of lines of a refinement and its parent (of words, if both have one line).

    Args:
        parent: text of the refined attempt; None for a first attempt.
    """
    own, old = _lines(text), _lines(parent or "")
    if len(own) <= 1 and len(old) <= 1:
        own, old = words(text), words(parent or "")
    if parent is None:
        return +Counter({WRITTEN: len(own)})
    found: Counter[str] = Counter()
    for what, a, b, c, d in difflib.SequenceMatcher(None, old, own, autojunk=False).get_opcodes():
        if what == "equal":
            found[KEPT] += b - a
            continue
        found[CHANGED] += min(b - a, d - c)
        found[ADDED] += max(0, (d - c) - (b - a))
        found[DROPPED] += max(0, (b - a) - (d - c))
    return +found


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def jensen_shannon(one: Counter[str], two: Counter[str]) -> float | None:
    """JSD in bits of two distributions, given as counts: 0 if equal, 1 if disjoint; None if one is empty."""
    if not one.total() or not two.total():
        return None
    found = 0.0
    for kind in one.keys() | two.keys():
        p, q = one[kind] / one.total(), two[kind] / two.total()
        middle = (p + q) / 2
        found += sum(share * math.log2(share / middle) / 2 for share in (p, q) if share)
    return min(max(found, 0.0), 1.0)


def style(counts: Sequence[Counter[str]]) -> float | None:
    """Mean Jensen-Shannon divergence over pairs of agents; None if fewer than two agents have steps."""
    pairs = [jensen_shannon(one, two) for one, two in itertools.combinations(counts, 2)]
    known = [value for value in pairs if value is not None]
    return sum(known) / len(known) if known else None
