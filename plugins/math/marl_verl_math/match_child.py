"""What compares two answers, by math-verify, in the process of `matcher`."""

import functools
import re
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
    """Whether math-verify finds an answer equal to the truth. It calls numbers equal whose difference is small, such as
    2^-98 and 2^-99: their first digits are compared, too."""
    from math_verify import verify

    expected, answered = parsed(truth), parsed(text)
    return bool(verify(expected, answered, timeout_seconds=None)) and not any(map(_apart, expected[:1], answered[:1]))


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


def _apart(one: Any, other: Any) -> bool:
    """Whether two values are numbers with different first digits, however small both are."""
    from math_verify.grader import get_pct_val
    from sympy import Expr, Float

    if not all(isinstance(value, Expr) and not value.free_symbols for value in (one, other)):
        return False
    digits = ROUNDED if one.has(Float) or other.has(Float) else DIGITS
    first, second = (get_pct_val(number, number).doit().evalf(DIGITS + 10, maxn=1000) for number in (one, other))
    return not (first == second or abs(first - second) < abs(first) * 10**-digits)
