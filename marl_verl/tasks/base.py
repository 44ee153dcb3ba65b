"""What a task is: one problem, and the set it comes from, which also scores the team's answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from marl_verl.options import Options

Split = Literal["train", "test"]


@dataclass(frozen=True)
class Task:
    """One problem.

    Attributes:
        id: unique in its task set, stable between runs (held-out sets are told apart by it).
        prompt: the problem in words; a workflow may show an agent only a part of `data` instead.
        data: everything else that workflow and scoring need, as JSON values.
    """

    id: str
    prompt: str
    data: dict[str, Any] = field(default_factory=dict)


class TaskSet(Options):
    """A family of tasks and what scores them. Annotated attributes are its options in config (`marl.task.options`)."""

    def generate(self, split: Split, count: int, seed: int) -> list[Task]:
        """`count` tasks of a split, the same for the same seed; no task of "test" is ever in "train"."""
        raise NotImplementedError(f"{type(self).__name__} makes no tasks of its own: give marl.task.{split}_file")

    def score(self, task: Task, answer: Any) -> Any:
        """The team reward of an episode with this answer, a number. May be async."""
        raise NotImplementedError(f"{type(self).__name__} has no score")

    def success(self, task: Task, answer: Any) -> Any:
        """Whether the team solved the task: what validation counts. May be async; this default is never called where an
        answer has been scored already."""
        return self.score(task, answer) >= 1.0

    def public_score(self, task: Task, answer: Any) -> Any:
        """What may be known of an answer without the solution (public tests, a check of its form), a number: by it
        inference chooses among attempts, which `score` then judges. May be async."""
        raise NotImplementedError(f"{type(self).__name__} has no public_score: without one nothing can be chosen by it")
