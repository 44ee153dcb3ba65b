"""A verifier's verdict in a text: `<verify>approve</verify>`, and what counts where there is none.

The authors' code takes an unparseable verdict for approval, silently. Here it is an option of each workflow, and the
action is marked invalid whatever the option says, so that `PenaltyMix` takes c off.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_TAG = re.compile(r"<verify>\s*(\w+)\s*</verify>", re.IGNORECASE)


def verdict(text: str, words: Sequence[str]) -> str | None:
    """The one of `words` (lower case) that stands in verify tags, None where there is none, or where two differ."""
    message = {word.lower() for word in _TAG.findall(text)} & set(words)
    return message.pop() if len(message) == 1 else None


def clipped(text: str, most: int) -> str:
    """A text of at most `most` characters: what is too long loses its middle, since the end has answer and verdict."""
    if len(text) <= most:
        return text
    cut = "\n[...]\n"
    head = max(0, (most - len(cut)) // 2)
    tail = max(0, most - len(cut) - head)
    return text[:head] + cut + text[len(text) - tail :]
