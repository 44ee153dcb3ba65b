"""An episode: the turns of one run of a workflow on one task, its journal and its result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from marl_verl.episode.journal import Journal
from marl_verl.episode.turn import Turn
from marl_verl.tasks.base import Task


@dataclass(slots=True)
class Episode:
    """All turns of one run of a workflow on one task.

    Attributes:
        turns: in index order.
        answer: what the workflow returned; of an unfinished episode, what it would answer now (None: nothing yet).
        success: whether the task set counts the answer as a solution.
        journal: replays the episode.
        seconds: wall-clock time from its start to its score.
        score: the task's score of the answer, 0 without one.
        finished: whether the workflow has ended; a path in a tree may stop before that.
        others: in a tree, turns sampled beside its own that it did not go on with. They are rows as well.
        leaf: in a tree, the last node of its path, where the last row is at several.
    """

    uid: str
    session: int
    task: Task
    turns: list[Turn]
    answer: Any
    success: bool
    journal: Journal
    seconds: float = 0.0
    score: float = 0.0
    finished: bool = True
    others: list[Turn] = field(default_factory=list)
    leaf: str | None = None

    @property
    def id(self) -> str:
        """uid_session, and in a tree the last node of its path: unique in a run."""
        leaf = self.leaf or (self.turns[-1].node if self.turns else None)
        return f"{self.uid}_{self.session}" + ("" if leaf is None else f"_{leaf}")
