"""Writing reward in levels, up to 3.0, of two parts of one text; computed without a model.

    structure     0.5  if the word counts of both parts are in range, else the reward is 0
    ratio         1.0  words(two) / words(one): full in a band, linear to 0 outside; at 0 no further level counts
    vocabulary    0.5  different words(two) / different words(one), without stop words: the same
    coherence     1.0  0.4 * transitions + 0.6 * min(J, J_full) / J_full

    transitions = min(1, 0.4 + 0.05 (c - 1)),  c: how many of the 12 kinds of transition words occur; 0 if none
    J = |A and B| / |A or B|,  A and B the different words of the parts without stop words

Source: MAGRPO, arXiv 2508.04652, and the authors' code for the numbers. The lists of words are our own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

TRANSITIONS: Mapping[str, tuple[str, ...]] = {
    "addition": ("also", "and then", "in addition", "additionally", "furthermore", "moreover", "besides", "as well as"),
    "contrast": (
        "but",
        "however",
        "although",
        "though",
        "yet",
        "nevertheless",
        "nonetheless",
        "in contrast",
        "whereas",
    ),
    "cause": ("because", "since", "due to", "owing to", "as a result of", "given that"),
    "effect": ("therefore", "thus", "hence", "consequently", "as a result", "accordingly", "so that"),
    "example": ("for example", "for instance", "such as", "namely", "in particular", "to illustrate"),
    "emphasis": ("indeed", "in fact", "notably", "above all", "especially", "importantly", "clearly"),
    "likeness": ("similarly", "likewise", "in the same way", "equally", "just as"),
    "time": ("then", "next", "meanwhile", "afterwards", "later", "before", "after", "while", "when"),
    "order": ("first", "firstly", "second", "secondly", "third", "thirdly", "finally", "lastly", "to begin with"),
    "condition": ("if", "unless", "provided that", "otherwise", "in case", "whether"),
    "restatement": ("in other words", "that is", "put differently", "to put it simply", "i.e."),
    "conclusion": ("in conclusion", "to conclude", "overall", "in summary", "to sum up", "in short", "ultimately"),
}
"""Kind -> its transition words."""

STOP_WORDS = frozenset(
    " ".join(
        (
            "a about after again all also am an and any are as at be because been before being between both but",
            "by can could did do does doing down during each few for from further had has have having he her here",
            "hers him his how i if in into is it its itself just me more most my myself no nor not now of off on",
            "once only or other our ours out over own same she should so some such than that the their theirs",
            "them then there these they this those through to too under until up very was we were what when where",
            "which while who whom why will with would you your yours",
        )
    ).split()
)

WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")


@dataclass(frozen=True)
class Band:
    """1 from `low` to `high`, and linear to 0 at `none_below` and `none_above`.

    Attributes:
        none_above: None without an upper limit.
    """

    none_below: float
    low: float
    high: float | None = None
    none_above: float | None = None

    def of(self, value: float) -> float:
        """Score of a value, 0 to 1."""
        if value < self.low:
            return max(0.0, (value - self.none_below) / (self.low - self.none_below))
        if self.high is None or self.none_above is None or value <= self.high:
            return 1.0
        return max(0.0, (self.none_above - value) / (self.none_above - self.high))


@dataclass(frozen=True)
class Bands:
    """Reward parameters of a data set.

    Attributes:
        words: minimum and maximum number of words of each part.
        ratio: of the parts' lengths. vocabulary: of their numbers of unique words.
        transitions_in: where transition words count: in part "two", or in "both".
        overlap: J_full, the overlap with the full score.
    """

    words: tuple[int, int]
    ratio: Band
    vocabulary: Band
    transitions_in: Literal["two", "both"]
    overlap: float


TLDR = Bands((8, 256), Band(1.1, 1.6, 3.2, 5.0), Band(1.3, 2.0), "two", 0.03)
"""A one-sentence summary, and a detailed one."""

ARXIV = Bands((128, 256), Band(0.8, 1.3, 1.6, 2.0), Band(0.5, 0.7, 1.3, 1.7), "both", 0.23)
"""Two paragraphs of one introduction."""

BANDS: Mapping[str, Bands] = {"tldr": TLDR, "arxiv": ARXIV}


def levels(one: str, two: str, bands: Bands) -> dict[str, float]:
    """Level -> its reward, in order, up to the last level that counts; their sum is the reward, up to 3.0."""
    found = {"structure": 0.5 if structure(one, two, bands) else 0.0}
    if found["structure"]:
        found["ratio"] = ratio(one, two, bands)
    if found.get("ratio"):
        found["vocabulary"] = 0.5 * vocabulary(one, two, bands)
    if found.get("vocabulary"):
        found["coherence"] = coherence(one, two, bands)
    return found


def structure(one: str, two: str, bands: Bands) -> bool:
    """Whether the word counts of both parts are in range."""
    fewest, most = bands.words
    return all(fewest <= len(part.split()) <= most for part in (one, two))


def ratio(one: str, two: str, bands: Bands) -> float:
    """0 to 1, by words(two) / words(one); 0 without words in part one."""
    return bands.ratio.of(len(two.split()) / len(one.split())) if one.split() else 0.0


def vocabulary(one: str, two: str, bands: Bands) -> float:
    """0 to 1, by the different words of part two to those of part one, without stop words; 0 if part one has none."""
    first = different(one)
    return bands.vocabulary.of(len(different(two)) / len(first)) if first else 0.0


def coherence(one: str, two: str, bands: Bands) -> float:
    """0 to 1: transition words, and words in common."""
    where = two if bands.transitions_in == "two" else f"{one}\n{two}"
    return 0.4 * transitions(where) + 0.6 * min(overlap(one, two), bands.overlap) / bands.overlap


def transitions(text: str) -> float:
    """min(1, 0.4 + 0.05 (c - 1)) for c kinds of transition words, 0 for none."""
    normalized = " ".join(text.lower().replace("’", "'").split())
    kinds = sum(any(_has(normalized, phrase) for phrase in phrases) for phrases in TRANSITIONS.values())
    return min(1.0, 0.4 + 0.05 * (kinds - 1)) if kinds else 0.0


def overlap(one: str, two: str) -> float:
    """J of the parts' different words; 0 where neither has any."""
    first, second = different(one), different(two)
    either = first | second
    return len(first & second) / len(either) if either else 0.0


def different(text: str) -> set[str]:
    """The different words of a text in lower case, without stop words."""
    return {word for word in WORD.findall(text.lower()) if word not in STOP_WORDS}


def _has(text: str, phrase: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(phrase)}(?!\w)", text) is not None
