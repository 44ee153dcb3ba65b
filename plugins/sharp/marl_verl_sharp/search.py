"""The workers' tool on multi-hop questions: a search among the paragraphs that come with a question.

    score(q, p) = sum over the words w in both q and p of log(1 + N / n_w)

with N paragraphs, of which n_w have the word: the overlap, weighted by rarity. Titles are part of their paragraphs.
Unlike BM25 without saturation and length normalisation: the twenty paragraphs have about the same length.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

WORD = re.compile(r"\w+")


class Paragraphs:
    """The paragraphs of one question.

    Args:
        paragraphs: `{"title": ..., "text": ...}` each.
    """

    def __init__(self, paragraphs: Sequence[Mapping[str, str]]) -> None:
        self._paragraphs = paragraphs

    def search(self, query: str, most: int) -> list[str]:
        """The `most` best paragraphs for a query, as "title: text", best first; ties keep their order.

        Raises:
            ValueError: there is no word in the query.
            LookupError: none of its words is in any paragraph.
        """
        words = _words(query)
        if not words:
            raise ValueError("the query has no word")
        scores = [sum(self._weight[word] for word in words & there) for there in self._words]
        order = sorted(range(len(scores)), key=lambda place: -scores[place])
        found = [place for place in order[:most] if scores[place] > 0]
        if not found:
            raise LookupError("no paragraph has a word of the query")
        return [f"{self._paragraphs[place]['title']}: {self._paragraphs[place]['text']}" for place in found]

    @functools.cached_property
    def _words(self) -> list[set[str]]:
        return [_words(f"{paragraph['title']} {paragraph['text']}") for paragraph in self._paragraphs]

    @functools.cached_property
    def _weight(self) -> dict[str, float]:
        """log(1 + N / n_w) of every word."""
        counts = Counter(word for words in self._words for word in words)
        return {word: math.log1p(len(self._words) / count) for word, count in counts.items()}


def _words(text: str) -> set[str]:
    return set(WORD.findall(text.lower()))
