"""Make reasoning-gym's scores safe: some of them evaluate the text that a model wrote, with `eval` or SymPy's parser,
which is `eval` too. Here the first reads literals only, and the second formulas only.

A formula has numbers, one-letter variables, functions of FUNCTIONS, + - * / and parentheses, and small whole exponents
(9**9**9 would take all memory). Integrals are compared within a time limit.
"""

import ast
import functools
import importlib
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import sympy
from marl_verl_sandbox import Limited
from sympy.parsing.sympy_parser import parse_expr

SECONDS = 5.0
_SIMPLIFY = Limited(Path(__file__).with_name("simplify_child.py"), "SymPy")

LITERALS = (
    "algorithmic.binary_matrix",
    "algorithmic.number_sorting",
    "algorithmic.spiral_matrix",
    "algorithmic.string_insertion",
    "games.n_queens",
)
"""Modules of reasoning-gym whose scores call `eval`."""
FORMULAS = {
    "algebra.intermediate_integration": "sympy",
    "algebra.polynomial_multiplication": "sp",
    "algebra.simple_integration": "sympy",
    "games.countdown": "parse_expr",
    "games.puzzle24": "parse_expr",
}
"""Modules whose scores call SymPy's parser -> the name in them of the parser, or of SymPy."""
FUNCTIONS = {"pi", "sqrt", "exp", "log", "ln", "Abs", "erf", "Rational"}
FUNCTIONS |= {a + f + h for a in ("", "a") for f in ("sin", "cos", "tan", "sec", "csc", "cot") for h in ("", "h")}
MOST = 2000  # characters
LARGEST = 1000  # product of the exponents of parentheses: ((9**9)**9)**9 is 9**729
TOKEN = re.compile(r"\s+|\*\*|[-+*/(),]|\d+\.?\d*|\.\d+|[A-Za-z]+")
EXPONENT = re.compile(r"\*\*\s*(?:-?\d{1,2}|\(\s*-?\d{1,2}(?:\s*/\s*\d{1,2})?\s*\))(?![\d.])(?!\s*\*\*)")


def formula(text: str, *arguments: Any, **options: Any) -> Any:
    """SymPy's `parse_expr` of a formula. ValueError: the text is none, or too large."""
    whole = len(text) <= MOST and "".join(TOKEN.findall(text)) == text
    names = set(re.findall(r"[A-Za-z]+", text))
    powers = text.count("**")
    if not whole or any(len(name) > 1 and name not in FUNCTIONS for name in names):
        raise ValueError("no formula")
    outer = math.prod(int(exponent) for exponent in re.findall(r"\)\s*\*\*[\s(-]*(\d+)", text) if int(exponent))
    if len(EXPONENT.findall(text)) != powers or outer > LARGEST:
        raise ValueError("exponents of a formula are small numbers")
    return parse_expr(text, *arguments, **options)


def zero_if_equal(expression: Any) -> int:
    """0 if an expression simplifies to 0 within `SECONDS`, else 1: the scores compare with 0 only.

    SymPy may work on a formula for ever, and cannot be interrupted: it does so in a process of its own.
    """
    return 0 if _SIMPLIFY.call(sympy.srepr(expression), seconds=SECONDS) is True else 1


@functools.cache
def make_safe() -> None:
    """Replace the parsers in reasoning-gym's modules, once in a process."""
    for name in LITERALS:
        vars(importlib.import_module(f"reasoning_gym.{name}"))["eval"] = ast.literal_eval
    guarded = SimpleNamespace(**{**vars(sympy), "parse_expr": formula, "simplify": zero_if_equal})
    for name, parser in FORMULAS.items():
        module = importlib.import_module(f"reasoning_gym.{name}")
        vars(module)[parser] = formula if parser == "parse_expr" else guarded
