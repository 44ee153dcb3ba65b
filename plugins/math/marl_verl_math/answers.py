r"""Final answers in mathematical texts: the last `\boxed{...}`, or the last number."""

from __future__ import annotations

import re

_OPEN = re.compile(r"\\f?boxed\s*\{")
_NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:/\d+)?|-?\.\d+")


def boxed(text: str) -> str | None:
    r"""The content of the last closed `\boxed{...}`, with nested braces; None without one."""
    for start in reversed([match.end() for match in _OPEN.finditer(text)]):
        depth = 1
        for at in range(start, len(text)):
            depth += (text[at] == "{") - (text[at] == "}")
            if depth == 0:
                return text[start:at].strip()
    return None


def last_number(text: str) -> str | None:
    """The last number of a text; None without one."""
    found = _NUMBER.findall(text)
    return found[-1] if found else None


def stated(text: str) -> str | None:
    r"""The answer that a text gives: the last `\boxed{...}`, or else its last number. None for an empty box."""
    found = boxed(text)
    return last_number(text) if found is None else found or None
