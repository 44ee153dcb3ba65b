"""Okapi BM25 over the few paragraphs that come with a question.

    score(q, d) = sum over words w of q of  idf(w) * f (k1 + 1) / (f + k1 (1 - b + b |d| / mean |d|))
    idf(w) = log(1 + (N - n_w + 0.5) / (n_w + 0.5))

f is the frequency of w in d, n_w the number of paragraphs with w, N the number of paragraphs; k1 1.5, b 0.75. Source:
Robertson and Zaragoza 2009, with a non-negative idf. Implemented here to avoid a dependency for ten paragraphs.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

K1, B = 1.5, 0.75
_WORD = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """The words of a text in lower case."""
    return _WORD.findall(text.lower())


def ranked(query: str, paragraphs: Sequence[str]) -> list[int]:
    """Indices of the paragraphs with a word of the query, best first; ties keep their order."""
    counts = [Counter(words(paragraph)) for paragraph in paragraphs]
    lengths = [count.total() for count in counts]
    mean = sum(lengths) / max(1, len(lengths))
    asked = sorted(set(words(query)))
    having = {word: sum(word in count for count in counts) for word in asked}
    scores = []
    for count, length in zip(counts, lengths, strict=True):
        score = 0.0
        for word in asked:
            if often := count[word]:
                idf = math.log(1 + (len(counts) - having[word] + 0.5) / (having[word] + 0.5))
                score += idf * often * (K1 + 1) / (often + K1 * (1 - B + B * length / mean))
        scores.append(score)
    found = [index for index, score in enumerate(scores) if score > 0]
    return sorted(found, key=lambda index: -scores[index])
