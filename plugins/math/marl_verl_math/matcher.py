"""Whether two final answers are equal, by math-verify (a computer algebra system), within limits.

math-verify works in another process, because an answer such as `9^{9^9}` would keep sympy busy for ever, and its own
time limit needs the main thread. An answer that needs longer than `SECONDS`, or more than 4 GiB, is not equal.
"""

import asyncio
import contextlib
import functools
import logging
import re
from typing import Any

from marl_verl.algo.sampling import call_in_process

SECONDS = 3.0
LONGEST = 1000
"""Maximum characters of an answer; a longer one is equal only to itself."""
DIGITS, ROUNDED = 40, 5.7
"""Number of significant digits that must agree, and of a decimal, which may be rounded: 0.333333 is 1/3."""
_INTEGER = re.compile(r"-?\d{1,18}")
_SPACE = r"(?:\\[ ,;:!]|~|\\quad|[ \u00a0\u2009\u202f])"
_GROUPS = re.compile(
    rf"(?<![\d.,])([1-9]\d{{0,2}})((?:(?:\{{,\}}|,\\!|\\!,|{_SPACE})\d{{3}})+)(?!\d|\{{,\}})(?!\s+\d*/|\s*,\s*\d{{3}})"
)
_DECIMAL_GROUPS = re.compile(rf"(?<=\.)\d{{3}}(?:{_SPACE}\d{{3}})*{_SPACE}\d{{1,3}}(?!\d)")
_NOT_DIGITS = re.compile(r"\D+")
_DECIMAL_COMMA = re.compile(r"(?<![\d.,])(\d+)\{,\}(\d+)(?!\d)")
_EXPONENT = re.compile(r"(?<![\w.])(\d+\.?\d*|\.\d+)[eE]([+-]?\d+)(?!\w)")
_ROOT, _PI = re.compile(r"√(?:\((\d+)\)|(\d+))"), re.compile(r"(?<![a-zA-Z\\])pi(?![a-zA-Z])")
_MIXED = re.compile(
    rf"(?<![\w.,^)}}\]/])(\d+)(?:{_SPACE}*\\[dtc]?frac\s*(?:\{{\s*(\d+)\s*\}}\s*\{{\s*(\d+)\s*\}}|(\d)\s*(\d))"
    rf"|{_SPACE}+(\d+)\s*/\s*(\d+)(?![\w/^]))"
)


async def same(answer: str, truth: str) -> bool:
    """Whether an answer is equal to the truth, without blocking the event loop."""
    answer, truth = answer.strip(), truth.strip()
    if not answer or not truth:
        return False
    if answer == truth:
        return True
    if len(answer) > LONGEST or len(truth) > LONGEST:
        return False
    if _INTEGER.fullmatch(answer) and _INTEGER.fullmatch(truth):  # most answers, most of them wrong
        return int(answer) == int(truth)
    for _ in range(2):  # again, if something else ended the process
        with contextlib.suppress(RuntimeError):
            return await asyncio.to_thread(_compared, answer, truth)
    return False


@functools.lru_cache(maxsize=1 << 16)
def _compared(answer: str, truth: str) -> bool:
    try:
        return bool(call_in_process(_EQUAL, answer, truth, seconds=SECONDS))
    except TimeoutError:  # of processor time: the same on a busy machine
        return False


class _Equal:
    """`_equal` as a function, which another process loads with what is imported late: this counts to no limit."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _loaded, ()

    def __call__(self, answer: str, truth: str) -> bool:
        try:
            return _equal(answer, truth)
        except Exception:  # noqa: BLE001 - libraries raise anything on arbitrary text
            return False


_EQUAL = _Equal()


def _loaded() -> _Equal:
    for library in ("math_verify", "latex2sympy2_extended"):
        logging.getLogger(library).setLevel(logging.CRITICAL + 1)
    _equal(r"\frac{1}{2}x", "2x+1")
    return _EQUAL


def _equal(answer: str, truth: str) -> bool:
    """Whether math-verify finds an answer equal to the truth. It calls numbers equal whose difference is small, such as
    2^-98 and 2^-99: their first digits are compared, too."""
    from math_verify import verify

    expected, answered = _parsed(truth), _parsed(answer)
    return bool(verify(expected, answered, timeout_seconds=None)) and not any(map(_apart, expected[:1], answered[:1]))


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> list[object]:
    """math-verify's expressions of an answer. A percent sign is no part of a number: 50% is 50, not 0.5."""
    from math_verify import parse

    text = text.rstrip(".").removesuffix("%").removesuffix("\\")
    return list(parse(f"\\boxed{{{plain(text)}}}", parsing_timeout=None))


def plain(text: str) -> str:
    r"""An answer without separators of thousands (10\,000), decimal commas (0{,}5), exponents (3e-7), √, pi and mixed
    numbers (2\frac{1}{2}), which math-verify takes for products or does not read."""
    text = _GROUPS.sub(lambda match: match[1] + _NOT_DIGITS.sub("", match[2]), text)
    text = _DECIMAL_GROUPS.sub(lambda match: _NOT_DIGITS.sub("", match[0]), text)
    text = _DECIMAL_COMMA.sub(r"\1.\2", text)
    text = _PI.sub(r"\\pi ", _ROOT.sub(r"\\sqrt{\1\2}", text))
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
