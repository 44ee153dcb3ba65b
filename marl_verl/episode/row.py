"""Convert a turn to a row of the row table: agent, position, rewards and length, without tokens."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from marl_verl.episode.turn import Turn

JOIN = "+"
"""Separator of node names: a row at several joint nodes (a crossed tree) lists all of them, "n0+n1"."""

LABELS = ("uid", "agent", "policy", "slot", "node", "parent")
"""Columns of names; all but the first two are optional."""
COUNTS = ("session", "index", "turn", "length")  # columns of whole numbers
DIFFERS_AT = "differs_at"
"""A column of rows whose turn continues a conversation: `Turn.differs_at`."""

COLUMNS = (*LABELS, *COUNTS, "rewards", "team_reward", "obs", "invalid", "columns")  # the keys of a row


def row(turn: Turn) -> dict[str, Any]:
    """The columns `COLUMNS` of a turn: identity, rewards and length."""
    shown: list[Any] = [[m["role"], m["content"]] if len(m) == 2 else m for m in turn.observation]
    seen = json.dumps(shown if turn.parameters is None else [shown, turn.parameters], sort_keys=True)
    differs = turn.differs_at
    return {
        **{name: getattr(turn, name) for name in (*LABELS, *COUNTS)},
        "rewards": dict(turn.rewards),
        "team_reward": turn.team_reward,
        "obs": hashlib.blake2s(seen.encode(), digest_size=8).hexdigest(),  # equal if messages and parameters are equal
        "invalid": turn.invalid is not None,
        "columns": turn.columns | ({} if differs is None else {DIFFERS_AT: differs}),
    }
