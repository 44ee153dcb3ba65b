"""Short answers: compared by exact match or F1 after normalisation (SQuAD, arXiv 1606.05250), as numbers, or by the
rule of GAIA (arXiv 2311.12983)."""

import math
import re
import string
from collections import Counter

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NUMBER = re.compile(r"(?:(?<!\d)-)?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_WIDE = "\u3000-\u303f\u4e00-\u9fff\uff00-\uffef"  # Chinese is written without spaces: each character is a word
_WORD = re.compile(rf"[{_WIDE}]|[^\s{_WIDE}]+")
_LIST = re.compile("[,;]")
TOLERANCE = 0.01


def tagged(text: str, tag: str) -> str | None:
    """The content of the last `<tag>...</tag>` that is not empty; None without one. It has no `<tag>` within, as after
    a text that says "in <tag> tags"."""
    contents = re.findall(rf"<{tag}>((?:(?!<{tag}>).)*?)</{tag}>", text, re.IGNORECASE | re.DOTALL)
    return next(filter(None, map(str.strip, reversed(contents))), None)


def normalised(text: str) -> str:
    """Lower case, without punctuation, articles and repeated white space. A text of nothing else keeps its articles
    ("A"), or its punctuation ("+")."""
    text = text.lower()
    words = text.translate(_PUNCTUATION)
    return next((" ".join(kept.split()) for kept in (_ARTICLES.sub(" ", words), words, text) if kept.strip()), "")


def exact_match(answer: str, truth: str) -> float:
    """1 if both are equal after normalisation and not empty, else 0."""
    text = normalised(answer)
    return float(bool(text) and text == normalised(truth))


def f1(answer: str, truth: str) -> float:
    """2 P R / (P + R) of the words that both have, with P their share of the answer and R of the truth.

    A Chinese character is a word. As in HotpotQA's evaluation, 0 if only one of them is yes, no or "noanswer".
    """
    one, other = normalised(answer), normalised(truth)
    if one != other and {one, other} & {"yes", "no", "noanswer"}:
        return 0.0
    words, right = _WORD.findall(one), _WORD.findall(other)
    both = (Counter(words) & Counter(right)).total()
    return 2 * both / (len(words) + len(right)) if both else 0.0


def number(answer: str, truth: str) -> float:
    """1 if the last number of the answer is within 1 % of the truth's, else 0."""
    values = [_NUMBER.findall(text.replace("−", "-")) for text in (answer, truth)]
    if not all(values):
        return 0.0
    one, other = (float(numbers[-1].replace(",", "")) for numbers in values)
    return float(math.isclose(one, other, rel_tol=TOLERANCE))


def gaia(answer: str, truth: str) -> float:
    """1 if the answer is right by the rule of GAIA, else 0. The truth decides what is compared.

    A number: the numbers, without "$", "%" and "," in the answer. A list, with "," or ";": as many elements in the same
    order, each a number, or a text without case and white space. A text: without case, white space and punctuation.

    Source: arXiv 2311.12983, and the benchmark's public scorer.
    """
    if _number_of(truth) is not None:
        return float(_same_element(answer, truth))
    if _LIST.search(truth):
        elements, truths = _LIST.split(answer), _LIST.split(truth)
        return float(len(elements) == len(truths) and all(map(_same_element, elements, truths)))
    bare = _bare(truth).translate(_PUNCTUATION)
    return float(_bare(answer).translate(_PUNCTUATION) == bare if bare else _bare(answer) == _bare(truth))


def _same_element(answer: str, truth: str) -> bool:
    if (value := _number_of(truth)) is not None:
        return _number_of(answer.translate(str.maketrans("", "", "$%,"))) == value
    return _bare(answer) == _bare(truth)


def _number_of(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _bare(text: str) -> str:
    return "".join(text.lower().split())
