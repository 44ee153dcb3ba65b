r"""The task set `math`: problems with one final answer, from public sets or files, compared by math-verify.

A task's `data` has the answer: {"answer": text}. A team's answer is a text, whose last `\boxed{...}` counts, or the
list of the answers of its acts, in order: [["tool-user", "41"], ["reasoner", "42"]], null where an act gave none; the
last one counts.
"""

from __future__ import annotations

from typing import Any, ClassVar

from marl_verl.errors import MarlError
from marl_verl.tasks import Fields, PublicTasks, Task
from marl_verl_math.answers import boxed
from marl_verl_math.matcher import same
from marl_verl_math.sets import SETS
from marl_verl_math.sets import final as marked

Answers = list[list[str | None]]


class MathTasks(PublicTasks):
    """Problems with a final answer."""

    quick = True

    sets: ClassVar = SETS

    def check(self, task: Task) -> None:
        truth(task)

    def row_task(self, row: Fields) -> Task:
        task = super().row_task(row)
        if "answer" not in self.fields:
            return task
        text = row.text("answer")
        return Task(task.id, task.prompt, {**task.data, "answer": marked(text) or text})

    async def score(self, task: Task, answer: Any) -> float:
        """1 if the final answer is equal to the task's, else 0. MarlError: another form of answer, or a task without
        one."""
        return await right(task, final(answer))

    def public_score(self, task: Task, answer: Any) -> float:
        """1 if there is a final answer, right or not, else 0. MarlError for another form of answer."""
        return float(bool(final(answer)))


def final(answer: Any) -> str | None:
    """The final answer of a team; None without one. MarlError for another form of answer."""
    if isinstance(answer, str):
        return boxed(answer)
    answers = checked(answer)
    return answers[-1][1] if answers else None


def checked(answer: Any) -> Answers:
    """Check the form of a list of answers."""
    if isinstance(answer, list) and all(isinstance(entry, list) and len(entry) == 2 for entry in answer):
        return answer
    raise MarlError(f"math scores a text, or a list of [agent, answer], got {answer!r:.60}")


async def right(task: Task, answer: str | None) -> float:
    """1 for the task's answer, else 0. MarlError: the task has none."""
    return float(answer is not None and await same(answer, truth(task)))


def truth(task: Task) -> str:
    """The task's answer. MarlError without one."""
    answer = task.data.get("answer")
    number = isinstance(answer, int | float) and not isinstance(answer, bool) and answer == answer
    if not (number or (isinstance(answer, str) and answer.strip())):
        raise MarlError(f"task '{task.id}' has no answer: its data must be {{\"answer\": text}}, got {task.data!r:.60}")
    return str(answer)
