"""Tags and verdicts in an agent's text, and clipping of long texts, for workflows."""

from __future__ import annotations

import re
from collections.abc import Sequence

_VERDICT = re.compile(r"<verify>\s*(\w+)\s*</verify>", re.IGNORECASE)


def tagged(text: str, tag: str) -> str | None:
    """The content of the last `<tag>...</tag>`; None without one, or if it is empty."""
    contents = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.IGNORECASE | re.DOTALL)
    return (contents[-1].strip() or None) if contents else None


def verdict(text: str, words: Sequence[str]) -> str | None:
    """The one of `words` (lower case) in `<verify>` tags; None without one, or with different ones."""
    verdicts = {word.lower() for word in _VERDICT.findall(text)} & set(words)
    return verdicts.pop() if len(verdicts) == 1 else None


def clipped(text: str, most: int) -> str:
    """A text of at most `most` characters: cut in the middle, since the end has the answer or verdict."""
    if len(text) <= most:
        return text
    cut = "\n[...]\n"
    head = max(0, (most - len(cut)) // 2)
    tail = max(0, most - len(cut) - head)
    return text[:head] + cut + text[len(text) - tail :]
