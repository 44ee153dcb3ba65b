"""The task set `search`: questions with short answers, and for some sets the paragraphs to search.

A task's `data` has `answers`, any of which is right (or `answer` and `aliases`), and may have `paragraphs`: a list of
`title` and `text`, and `metric`, the name of the metric that its set is scored by.
"""

from typing import Any, ClassVar, Literal

from marl_verl.errors import unknown
from marl_verl.tasks import Fields, PublicTasks, Task
from marl_verl_search.answers import exact_match, f1, gaia, normalised, number
from marl_verl_search.sets import SETS

METRICS = {"em": exact_match, "f1": f1, "number": number, "gaia": gaia}


class SearchTasks(PublicTasks):
    """Questions with short answers.

    Options:
        metric: the score, of the most similar right answer: `em`, exact match; `f1`, of words; `number`, within 1 %;
            `gaia`, the rule of GAIA. null: the task's (`number` of DocMath-Eval, `gaia` of GAIA, `f1` of WebWalkerQA),
            else `em`.
    """

    quick = True

    sets: ClassVar = SETS
    metric: Literal["em", "f1", "number", "gaia"] | None = None

    def check(self, task: Task) -> None:
        answers_of(task)
        self._metric(task)

    def row_task(self, row: Fields) -> Task:
        task = super().row_task(row)
        data = {**task.data, "answers": row.texts("answer")} if "answer" in self.fields else task.data
        return Task(task.id, task.prompt, data)

    def score(self, task: Task, answer: Any) -> float:
        """0 to 1, by the metric. MarlError if the task has no answers."""
        metric = METRICS[self._metric(task)]
        return max(metric(answer, truth) for truth in answers_of(task))

    def success(self, task: Task, answer: Any) -> bool:
        """Exact match, or a score of 1 with the metrics `number` and `gaia`."""
        same = exact_match if (name := self._metric(task)) == "f1" else METRICS[name]
        return any(same(answer, truth) for truth in answers_of(task))

    def public_score(self, task: Task, answer: Any) -> float:
        """1 if there is an answer, right or not, else 0."""
        return float(bool(normalised(answer)))

    def _metric(self, task: Task) -> str:
        name = self.metric or task.data.get("metric", "em")
        if name not in METRICS:
            raise unknown("metric", str(name), METRICS)
        return str(name)


def answers_of(task: Task) -> list[str]:
    """The right answers of a task. MarlError for another form of data."""
    fields = Fields(task.data, f"the data of task '{task.id}'")
    return fields.texts("answers", "answer") + (task.data.get("aliases") or [])
