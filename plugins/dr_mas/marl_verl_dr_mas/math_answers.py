r"""Final answers in mathematics: extract the last `\boxed{...}` of a text, and compare answers.

Two answers are the same if their normal forms are the same text, or the same rational number. This is stricter than a
computer algebra system: `2\sqrt{2}` and `\sqrt{8}` differ.
"""

from __future__ import annotations

import re
from fractions import Fraction

_OPEN = re.compile(r"\\f?boxed\s*\{")
_DROPPED = re.compile(r"\\left|\\right|\\displaystyle|\\[!,;:> ]|\\\(|\\\)|\^\{?\\circ\}?|\\degree|\\%|[$%]|\s")
_TEXT = re.compile(r"\\(?:text|mathrm|mathbf|textbf|mbox)\{([^{}]*)\}")
_NAMED = re.compile(r"[A-Za-z]=(?!=)")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_FRACTION = re.compile(r"(-?)\\frac\{(-?\d+)\}\{(-?\d+)\}|(-?)(\d+)/(\d+)")
_NUMBER = re.compile(r"-?(\d+\.?\d*|\.\d+)")


def boxed(text: str) -> str | None:
    r"""The content of the last closed `\boxed{...}`; None without one."""
    for start in reversed([match.end() for match in _OPEN.finditer(text)]):
        depth = 1
        for at in range(start, len(text)):
            depth += (text[at] == "{") - (text[at] == "}")
            if depth == 0:
                return text[start:at].strip()
    return None


def normal(answer: str) -> str:
    r"""Normalise an answer: remove spacing, degree and percent signs, text commands, `x=`, thousands separators and a
    final dot; write every fraction as `\frac{a}{b}`."""
    short = _DROPPED.sub("", _TEXT.sub(r"\1", answer))
    short = re.sub(r"\\[dt]frac", r"\\frac", short)
    short = re.sub(r"\\frac(\d)(\d)", r"\\frac{\1}{\2}", short)
    if _NAMED.match(short):
        short = short[2:]
    return _THOUSANDS.sub("", short.rstrip("."))


def same(answer: str, truth: str) -> bool:
    """Whether two answers are the same, see the module docstring."""
    one, other = normal(answer), normal(truth)
    if one == other:
        return bool(one)
    left, right = _rational(one), _rational(other)
    return left is not None and left == right


def _rational(short: str) -> Fraction | None:
    """The rational number of a normal form, None if it is no number."""
    if _NUMBER.fullmatch(short):
        return Fraction(short)
    found = _FRACTION.fullmatch(short)
    if found is None:
        return None
    sign, above, below = (found[1], found[2], found[3]) if found[2] is not None else (found[4], found[5], found[6])
    if int(below) == 0:
        return None
    value = Fraction(int(above), int(below))
    return -value if sign else value
