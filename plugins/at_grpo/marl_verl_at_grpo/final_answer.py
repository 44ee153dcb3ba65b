r"""Final answers of mathematical texts: extract, normalise and compare them.

Compared exactly, after normalisation: 0.5, 1/2, \frac{1}{2} and .50 are one number, and 1,000 is 1000. Other
answers are compared as text without spaces and dollar signs. Two expressions that are equal only by algebra (x + 1 and
1 + x) count as different; a library that compares these (math-verify) requires a computer algebra system and a parser
generator.
"""

from __future__ import annotations

import re
from fractions import Fraction

_NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:/\d+)?|-?\.\d+")
_FRACTION = re.compile(r"\\[dt]?frac(?:\{([^{}]*)\}\{([^{}]*)\}|(\d)(\d))")
_MARKS = re.compile(r"\\(?:left|right|displaystyle|[,;:! ])|[\s$]")
_WORDS = re.compile(r"\\(?:text|mathrm|mathbf)\{([^{}]*)\}")


def boxed(text: str) -> str | None:
    r"""The content of the last \boxed{...} of a text, with nested braces; None without one."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, begin = 1, start + len("\\boxed{")
    for at in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[begin:at].strip()
    return None


def last_number(text: str) -> str | None:
    """The last number of a text; None without one."""
    found = _NUMBER.findall(text)
    return found[-1] if found else None


def stated(text: str) -> str | None:
    r"""The answer that a text gives: the last \boxed{...}, or else its last number."""
    found = boxed(text)
    return last_number(text) if found is None else found or None


def normal(answer: str) -> str:
    """Normalise an answer: a number to its reduced fraction, anything else to text without marks."""
    text = _WORDS.sub(r"\1", _MARKS.sub("", answer)).rstrip(".")
    text = text.removesuffix("\\%").removesuffix("%").removesuffix("^\\circ").removesuffix("^{\\circ}")
    text = _FRACTION.sub(lambda match: f"{match[1] or match[3]}/{match[2] or match[4]}", text)
    if _NUMBER.fullmatch(text):
        top, _, bottom = text.replace(",", "").partition("/")
        if not bottom or int(bottom):
            return str(Fraction(top) / Fraction(bottom or "1"))
    return text


def same(one: str, other: str) -> bool:
    """Whether two answers are equal after normalisation."""
    return normal(one) == normal(other)
