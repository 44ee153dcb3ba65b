"""A task, and the splits of a task set."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Split = Literal["train", "test"]
SPLITS: tuple[Split, ...] = ("train", "test")
SET = "set"
"""Name in a task's `data` of the public set that it is from: held-out success is also reported for each."""


@dataclass(frozen=True)
class Task:
    """One problem.

    Attributes:
        id: unique in its task set and stable between runs (it identifies held-out tasks).
        prompt: the problem as text; a workflow may instead show an agent a part of `data`.
        data: all other data for workflow and scoring, as JSON values.
    """

    id: str
    prompt: str
    data: dict[str, Any] = field(default_factory=dict)
