"""A turn as the mapping that a row table takes: who acted, where the turn sits, and what it earned; no token."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from marl_verl.episode.turn import Turn

JOIN = "+"
"""A row that takes part in several joint nodes (a crossed tree) names them all: "n0+n1"."""

LABELS = ("uid", "agent", "policy", "slot", "node", "parent")
"""Columns of names; all but the first two may be absent."""
COUNTS = ("session", "index", "turn", "length")  # columns of whole numbers
COLUMNS = (*LABELS, *COUNTS, "rewards", "team_reward", "obs", "invalid")  # the keys of a row


def row(turn: Turn) -> dict[str, Any]:
    """The identity, rewards and length of a turn, by `COLUMNS`: all that an advantage needs."""
    seen = json.dumps([[message["role"], message["content"]] for message in turn.observation])
    return {
        **{name: getattr(turn, name) for name in (*LABELS, *COUNTS)},
        "rewards": dict(turn.rewards),
        "team_reward": turn.team_reward,
        "obs": hashlib.blake2s(seen.encode(), digest_size=8).hexdigest(),  # the same where the messages are the same
        "invalid": turn.invalid is not None,
    }
