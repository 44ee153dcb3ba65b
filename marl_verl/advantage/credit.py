"""Credit scheme `none`: nobody's share of the reward is singled out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NoCredit:
    """Every turn keeps the reward components it has: nothing is replayed, and no component `credit` is added."""
