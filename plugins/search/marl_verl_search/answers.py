"""Short answers: normalised, and compared by exact match, F1 or as numbers (SQuAD, arXiv 1606.05250)."""

from __future__ import annotations

import math
import re
import string
from collections import Counter

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NUMBER = re.compile(r"-?(?:\d[\d,]*\.?\d*|\.\d+)")
TOLERANCE = 0.01


def normalised(text: str) -> str:
    """Lower case, without punctuation, articles and repeated white space. A text of nothing else keeps its articles
    ("A"), or its punctuation ("+")."""
    text = text.lower()
    words = text.translate(_PUNCTUATION)
    return next((" ".join(kept.split()) for kept in (_ARTICLES.sub(" ", words), words, text) if kept.strip()), "")


def exact_match(answer: str, truth: str) -> float:
    """1 if both are equal after normalisation and not empty, else 0."""
    found = normalised(answer)
    return float(bool(found) and found == normalised(truth))


def f1(answer: str, truth: str) -> float:
    """2 P R / (P + R) of the words that both have, with P their share of the answer and R of the truth.

    As in HotpotQA's evaluation, 0 if only one of them is yes, no or "noanswer".
    """
    one, other = normalised(answer), normalised(truth)
    if one != other and {one, other} & {"yes", "no", "noanswer"}:
        return 0.0
    words, right = one.split(), other.split()
    both = (Counter(words) & Counter(right)).total()
    return 2 * both / (len(words) + len(right)) if both else 0.0


def number(answer: str, truth: str) -> float:
    """1 if the last number of the answer is within 1 % of the truth's, else 0."""
    values = [_NUMBER.findall(text) for text in (answer, truth)]
    if not all(values):
        return 0.0
    one, other = (float(found[-1].replace(",", "")) for found in values)
    return float(math.isclose(one, other, rel_tol=TOLERANCE))
