"""Metric `cooperation`: how the main function uses the helper, by syntax trees. Shares of the episodes' answers:

    cooperation/calls            the main function calls the helper
    cooperation/fallback         a call stands in a `try` with a handler, or is what a handler does
    cooperation/decorator        a returned value is computed from a call's result, and is more than that result
    cooperation/coordinator      a call is in a loop or comprehension: the problem is divided
    cooperation/strategy-filter  a call's result decides a branch

The four patterns are those that MAGRPO (arXiv 2508.04652) describes; the definitions by syntax are ours. An answer may
show several, and counts in each.
"""

import ast
from collections.abc import Mapping

from marl_verl.algo.algorithms import Metric
from marl_verl.algo.sampling import Sample
from marl_verl_code.code_levels import calls, definition, function, is_call
from marl_verl_code.joint_code import AUX, HELPER, MAIN, entry_of

PATTERNS = ("fallback", "decorator", "coordinator", "strategy-filter")
LOOPS = ast.For | ast.AsyncFor | ast.While | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


class Cooperation(Metric):
    """Patterns of cooperation between helper and main function."""

    def of_sample(self, sample: Sample) -> Mapping[str, float]:
        shown = [
            patterns(episode.answer[MAIN], entry_of(episode.task))
            for episode in sample.episodes
            if isinstance(episode.answer, Mapping) and {HELPER, MAIN} <= set(episode.answer)
        ]
        names = ("calls", *PATTERNS) if shown else ()
        return {f"cooperation/{name}": sum(name in used for used in shown) / len(shown) for name in names}


def patterns(main: str, entry: str) -> set[str]:
    """The patterns in the code of the main function, and "calls"; empty if it does not call the helper."""
    tree = definition(function(main, entry))
    if tree is None or not calls(tree, AUX):
        return set()
    names = _results(tree)
    shown = {"calls"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and node.handlers and _uses(node, set()):
            shown.add("fallback")
        elif isinstance(node, ast.Return) and node.value is not None:
            bare = isinstance(node.value, ast.Name) or is_call(node.value, AUX)
            shown |= set() if bare or not _uses(node.value, names) else {"decorator"}
        elif isinstance(node, LOOPS) and _uses(node, set()):
            shown.add("coordinator")
        elif isinstance(node, ast.If | ast.IfExp | ast.While) and _uses(node.test, names):
            shown.add("strategy-filter")
    return shown


def _results(tree: ast.FunctionDef) -> set[str]:
    targets: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and _uses(node.value, set()):
            targets += node.targets if isinstance(node, ast.Assign) else [node.target]
    return {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}


def _uses(node: ast.AST, names: set[str]) -> bool:
    return any(is_call(part, AUX) or (isinstance(part, ast.Name) and part.id in names) for part in ast.walk(node))
