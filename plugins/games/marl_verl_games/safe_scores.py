"""Make reasoning-gym's scores safe: some of them evaluate the text that a model wrote, with `eval` or SymPy's parser,
which is `eval` too. Here the first reads literals only, and the second arithmetic only; the rest is removed.
"""

import ast
import functools
import importlib
import re
from typing import Any

from reasoning_gym.factory import DATASETS
from sympy.parsing.sympy_parser import parse_expr

LITERALS = (
    "algorithmic.binary_matrix",
    "algorithmic.number_sorting",
    "algorithmic.spiral_matrix",
    "algorithmic.string_insertion",
    "games.n_queens",
)
"""Modules of reasoning-gym whose scores call `eval`."""
ARITHMETIC = ("games.countdown", "games.puzzle24")
"""Modules whose scores call SymPy's parser for numbers and + - * / and parentheses."""
REMOVED = ("intermediate_integration", "polynomial_multiplication", "simple_integration")
"""Generators whose scores simplify a formula of the model, on which SymPy may work for ever."""
MOST = 500  # characters


def arithmetic(text: str, *arguments: Any, **options: Any) -> Any:
    """SymPy's `parse_expr` of numbers and operators, without powers. ValueError: the text is something else."""
    if len(text) > MOST or "**" in text or not re.fullmatch(r"[\d\s.+\-*/()]*", text):
        raise ValueError("no arithmetic")
    return parse_expr(text, *arguments, **options)


@functools.cache
def make_safe() -> None:
    """Replace the parsers in reasoning-gym's modules and remove generators, also for `composite`; once in a process."""
    for name in REMOVED:
        del DATASETS[name]
    for name in LITERALS:
        vars(importlib.import_module(f"reasoning_gym.{name}"))["eval"] = ast.literal_eval
    for name in ARITHMETIC:
        vars(importlib.import_module(f"reasoning_gym.{name}"))["parse_expr"] = arithmetic
