r"""The task set `math`: problems with one final answer, from public sets or files, compared by math-verify.

A task's `data` has the answer: {"answer": text}. A team's answer is a text, whose last `\boxed{...}` counts, or the
list of the answers of its acts, in order: [["tool-user", "41"], ["reasoner", "42"]], null where an act gave none; the
last one counts.
"""

from typing import Any, ClassVar

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
        """1 if the final answer is equal to the task's, else 0. MarlError for a task without an answer."""
        return await right(task, final(answer))

    def public_score(self, task: Task, answer: Any) -> float:
        """1 if there is a final answer, right or not, else 0."""
        return float(bool(final(answer)))


def final(answer: str | Answers) -> str | None:
    """The final answer of a team; None without one."""
    if isinstance(answer, str):
        return boxed(answer)
    return answer[-1][1] if answer else None


async def right(task: Task, answer: str | None) -> float:
    """1 for the task's answer, else 0. MarlError: the task has none."""
    return float(answer is not None and await same(answer, truth(task)))


def truth(task: Task) -> str:
    """The task's answer. MarlError without one."""
    return Fields(task.data, f"the data of task '{task.id}'").text("answer")
