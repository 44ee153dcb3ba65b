"""What compares two answers, by math-verify, in the process of `matcher`.

Uses math-verify internals: `grader.sympy_numeric_eq` and `sympy_symbolic_eq`, by which it compares values also within
tuples, sets, equations and matrices. They call numbers equal whose difference is small, such as 2^-98 and 2^-99.
"""

import functools
import re
from collections.abc import Callable
from typing import Any

DIGITS, ROUNDED = 40, 5.7
"""Number of significant digits that must agree, and of a decimal, which may be rounded: 0.333333 is 1/3."""
_SPACE = r"(?:\\[ ,;:!]|~|\\quad|[ \u00a0\u2009\u202f])"
_GROUPS = re.compile(
    rf"(?<![\d.,])([1-9]\d{{0,2}})((?:(?:\{{,\}}|,\\!|\\!,|{_SPACE})\d{{3}})+)(?!\d|\{{,\}})(?!\s+\d*/|\s*,\s*\d{{3}})"
)
_DECIMAL_GROUPS = re.compile(rf"(?<=\.)\d{{3}}(?:{_SPACE}\d{{3}})*{_SPACE}\d{{1,3}}(?!\d)")
_NOT_DIGITS = re.compile(r"\D+")
_DECIMAL_COMMA = re.compile(r"(?<![\d.,])(\d+)\{,\}(\d+)(?!\d)")
_EXPONENT = re.compile(r"(?<![\w.])(\d+\.?\d*|\.\d+)[eE]([+-]?\d+)(?!\w)")
_MIXED = re.compile(
    rf"(?<![\w.,^)}}\]/])(\d+)(?:{_SPACE}*\\[dtc]?frac\s*(?:\{{\s*(\d+)\s*\}}\s*\{{\s*(\d+)\s*\}}|(\d)\s*(\d))"
    rf"|{_SPACE}+(\d+)\s*/\s*(\d+)(?![\w/^]))"
)


def warm() -> None:
    """Import everything that is imported late."""
    answer(r"\frac{1}{2}x", "2x+1")


def answer(text: str, truth: str) -> bool:
    """Whether math-verify finds an answer equal to the truth."""
    from math_verify import grader, verify

    if not isinstance(grader.sympy_numeric_eq, functools.partial):
        grader.sympy_numeric_eq = functools.partial(_numerically, grader.sympy_numeric_eq)
        grader.sympy_symbolic_eq = functools.partial(_symbolically, grader.sympy_symbolic_eq)
    return bool(verify(parsed(truth), parsed(text), timeout_seconds=None))


@functools.lru_cache(maxsize=4096)
def parsed(text: str) -> list[object]:
    """math-verify's expressions of an answer. A percent sign is no part of a number: 50% is 50, not 0.5."""
    from math_verify import parse

    text = text.strip().rstrip(".").removesuffix("%").removesuffix("\\")
    return list(parse(f"\\boxed{{{plain(text)}}}", parsing_timeout=None))


def plain(text: str) -> str:
    r"""An answer without separators of thousands (10\,000), decimal commas (0{,}5), exponents (3e-7) and mixed numbers
    (2\frac{1}{2}), which math-verify takes for products or does not read."""
    text = _GROUPS.sub(lambda match: match[1] + _NOT_DIGITS.sub("", match[2]), text)
    text = _DECIMAL_GROUPS.sub(lambda match: _NOT_DIGITS.sub("", match[0]), text)
    text = _DECIMAL_COMMA.sub(r"\1.\2", text)
    text = _EXPONENT.sub(r"\1\\cdot 10^{\2}", text)
    return _MIXED.sub(_sum, text)


def _sum(match: re.Match[str]) -> str:
    r"""A whole number and a proper fraction as one fraction: 2\frac{1}{2} is \frac{5}{2}. Others as they are."""
    whole, top, bottom = (int(group) for group in match.groups() if group is not None)
    return f"\\frac{{{whole * bottom + top}}}{{{bottom}}}" if 0 < top < bottom else match[0]


def _numerically(loosely: Callable[..., bool], one: Any, other: Any, *precision: int) -> bool:
    """math-verify's comparison of numbers; expressions with variables are left to that of their difference."""
    right = loosely(one, other, *precision)
    return right and not (_variables(one) or _variables(other)) and not _apart(one, other)


def _symbolically(loosely: Callable[..., bool], one: Any, other: Any) -> bool:
    return loosely(one, other) and not _apart(one, other)


def _variables(value: Any) -> Any:
    return getattr(value, "free_symbols", None)


def _apart(one: Any, other: Any) -> bool:
    """Whether two values are numbers with different first digits, however small both are."""
    from math_verify.grader import get_pct_val
    from sympy import Expr, Float

    if not (isinstance(one, Expr) and isinstance(other, Expr)) or _variables(one) or _variables(other):
        return False
    digits = ROUNDED if one.has(Float) or other.has(Float) else DIGITS
    first, second = (get_pct_val(number, number).doit().evalf(DIGITS + 10, maxn=1000) for number in (one, other))
    return not (first == second or abs(first - second) < abs(first) * 10**-digits)
