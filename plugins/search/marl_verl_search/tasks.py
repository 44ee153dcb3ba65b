"""The task set `search`: questions with short answers, and for some sets the paragraphs to search.

A task's `data` has `answers`, any of which is right (or `answer` and `aliases`), and may have `paragraphs`: a list of
`title` and `text`, and `metric`, the name of the metric that its set is scored by.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from marl_verl_datasets import Fields, LeftOut, PublicSet, PublicTasks, task_id

from marl_verl.errors import check_known
from marl_verl.tasks import Split, Task
from marl_verl_search.answers import exact_match, f1, gaia, normalised, number

Paragraphs = list[dict[str, str]]


def golden(row: Fields) -> Task:
    """`question` and `golden_answers` (FlashRAG, Search-R1) or `answer` (NQ-open), a list; or `Prompt` and `Answer`
    (FRAMES). No paragraphs."""
    return _task(row, row.texts("golden_answers", "answer", "Answer"))


def hotpotqa(row: Fields) -> Task:
    """`question`, `answer`, and `context`: pairs of title and sentences, or columns of both. Also 2WikiMultiHopQA's."""
    if isinstance(row.value("context"), Mapping):  # the hub's columns
        columns = row.inner("context")
        pairs = [*zip(columns.items("title", "titles"), columns.items("sentences", "content"), strict=True)]
    else:
        pairs = row.items("context")
    paragraphs = [{"title": title, "text": _joined(sentences)} for title, sentences in pairs]
    return _task(row, row.texts("answer"), paragraphs)


def musique(row: Fields) -> Task:
    """`question`, `answer`, `answer_aliases`, and `paragraphs` with `title` and `paragraph_text`."""
    if row.row.get("answerable", True) is False:
        raise LeftOut("unanswerable")
    paragraphs = []
    for place, paragraph in enumerate(row.items("paragraphs")):
        fields = Fields(paragraph, f"{row.where}, paragraph {place}")
        paragraphs.append({"title": fields.text("title"), "text": fields.text("paragraph_text")})
    return _task(row, [row.text("answer"), *row.items("answer_aliases")], paragraphs)


def docmath(row: Fields) -> Task:
    """`question`, the number `ground_truth` (or `answer`), and `paragraphs`: texts. Metric `number`."""
    texts = row.texts("paragraphs")
    paragraphs = [{"title": f"Paragraph {place}", "text": text} for place, text in enumerate(texts)]
    return _task(row, [row.text("ground_truth", "answer")], paragraphs, metric="number")


def gaia_question(row: Fields) -> Task:
    """`Question` and `Final answer`; metric `gaia`. Questions on an attached file (`file_name`) are left out, and those
    of the test set, whose answers are not public ("?")."""
    if str(row.row.get("file_name") or "").strip():
        raise LeftOut("with a file")
    if (answer := row.text("Final answer")) == "?":
        raise LeftOut("without a public answer")
    return _task(row, [answer], metric="gaia")


def webwalker(row: Fields) -> Task:
    """The prompt is `question` with the website, `root_url`. `answer` may be a sentence, so that the metric is `f1`."""
    task = _task(row, row.texts("answer"), metric="f1")
    return Task(task.id, f"{task.prompt}\n\nThe answer is on this website: {row.text('root_url')}", task.data)


def _task(row: Fields, answers: list[str], paragraphs: Paragraphs | None = None, metric: str | None = None) -> Task:
    text = row.text("question", "Prompt")
    data = {"answers": list(dict.fromkeys(answers)), "paragraphs": paragraphs, "metric": metric}
    return Task(task_id("search", text), text, {name: value for name, value in data.items() if value is not None})


def _joined(sentences: list[str]) -> str:
    """Sentences with a space between them: HotpotQA's begin with one, 2WikiMultiHopQA's do not."""
    if isinstance(sentences, str):
        raise TypeError("'context' must have pairs of a title and a list of sentences")
    return "".join(text if text[:1].isspace() else f" {text}" for text in sentences).strip()


DEV: Mapping[Split, str] = {"train": "train", "test": "validation"}
VALIDATION: Mapping[Split, str] = {"test": "validation"}
WALKER: Mapping[Split, str] = {"train": "silver", "test": "main"}
GAIA = "gaia-benchmark/GAIA"

SETS: Mapping[str, PublicSet] = {
    "nq": PublicSet("google-research-datasets/nq_open", golden, splits=DEV),
    "nq-hotpotqa": PublicSet("PeterJinGo/nq_hotpotqa_train", golden),
    "hotpotqa": PublicSet("hotpotqa/hotpot_qa", hotpotqa, config="distractor", splits=DEV),
    "musique": PublicSet("dgslibisey/MuSiQue", musique, splits=DEV),
    "2wiki": PublicSet("xanhho/2WikiMultihopQA", hotpotqa, files={"train": ["train.parquet"], "test": ["dev.parquet"]}),
    "docmath-eval": PublicSet("yale-nlp/DocMath-Eval", docmath, splits={"test": "complong_testmini"}),
    "gaia": PublicSet(GAIA, gaia_question, config="2023_all", splits=VALIDATION),
    **{
        f"gaia-level{level}": PublicSet(GAIA, gaia_question, config=f"2023_level{level}", splits=VALIDATION)
        for level in (1, 2, 3)
    },
    "webwalkerqa": PublicSet("callanwu/WebWalkerQA", webwalker, splits=WALKER),
    "frames": PublicSet("google/frames-benchmark", golden, splits={"test": "test"}),
}


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
        check_known("metric", self._metric(task), METRICS)

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
        return str(self.metric or task.data.get("metric", "em"))


def answers_of(task: Task) -> list[str]:
    """The right answers of a task. MarlError for another form of data."""
    fields = Fields(task.data, f"the data of task '{task.id}'")
    aliases = task.data.get("aliases") or []
    return fields.texts("answers", "answer") + ([aliases] if isinstance(aliases, str) else aliases)
