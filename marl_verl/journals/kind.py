"""How a file of stored episodes is recognised, without reading it."""

from __future__ import annotations

import json

KIND = "episodes"
"""Key `kind` of a file's first line."""


def holds_episodes(content: bytes) -> bool:
    """Whether a file begins as one of stored episodes does."""
    try:
        data = json.loads(content.partition(b"\n")[0])
    except (ValueError, RecursionError):
        return False
    return isinstance(data, dict) and data.get("kind") == KIND
