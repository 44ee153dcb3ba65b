"""A verifier's verdict in a text: `<verify>approve</verify>`, and clipping of long texts.

The authors' code silently treats an unparseable verdict as approval. Here the treatment is an option of each workflow,
and the action is always marked invalid, so that `PenaltyMix` subtracts c.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_TAG = re.compile(r"<verify>\s*(\w+)\s*</verify>", re.IGNORECASE)


def verdict(text: str, words: Sequence[str]) -> str | None:
    """The one of `words` (lower case) in verify tags; None without one, or with different ones."""
    found = {word.lower() for word in _TAG.findall(text)} & set(words)
    return found.pop() if len(found) == 1 else None


def clipped(text: str, most: int) -> str:
    """A text of at most `most` characters: cut in the middle, since the end has the answer or verdict."""
    if len(text) <= most:
        return text
    cut = "\n[...]\n"
    head = max(0, (most - len(cut)) // 2)
    tail = max(0, most - len(cut) - head)
    return text[:head] + cut + text[len(text) - tail :]
