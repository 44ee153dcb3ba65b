"""Public sets of questions: where they are, and which of their fields are question, answers and paragraphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from marl_verl.tasks import Fields, LeftOut, PublicSet, Split, Task, task_id

Paragraphs = list[dict[str, str]]


def golden(row: Fields) -> Task:
    """`question`, and `golden_answers` (FlashRAG, Search-R1) or `answer` (NQ-open): a list. No paragraphs."""
    return _task(row, row.texts("golden_answers", "answer"))


def hotpotqa(row: Fields) -> Task:
    """`question`, `answer`, and `context`: pairs of title and sentences, or columns of both. Also 2WikiMultiHopQA's."""
    context = row.value("context")
    if isinstance(context, Mapping):  # the hub's columns
        columns = row.inner("context")
        titles, sentences = columns.items("title", "titles"), columns.items("sentences", "content")
        if len(titles) != len(sentences):
            raise row.wrong(f"has {len(titles)} titles and {len(sentences)} lists of sentences", context, "context")
        pairs: list[Any] = list(zip(titles, sentences, strict=True))
    else:
        pairs = row.items("context")
    paragraphs = []
    for pair in pairs:
        right = isinstance(pair, Sequence) and len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], list)
        if not right or not all(isinstance(sentence, str) for sentence in pair[1]):
            raise row.wrong("must have pairs of a title and a list of sentences", pair, "context")
        paragraphs.append({"title": pair[0], "text": "".join(_spaced(pair[1])).strip()})
    return _task(row, row.texts("answer"), paragraphs)


def musique(row: Fields) -> Task:
    """`question`, `answer`, `answer_aliases`, and `paragraphs` with `title` and `paragraph_text`."""
    if row.row.get("answerable", True) is False:
        raise LeftOut("unanswerable")
    paragraphs = []
    for number, paragraph in enumerate(row.items("paragraphs")):
        if not isinstance(paragraph, Mapping):
            raise row.wrong("must have objects", paragraph, "paragraphs")
        fields = Fields(paragraph, f"{row.where}, paragraph {number}")
        paragraphs.append({"title": fields.text("title"), "text": fields.text("paragraph_text")})
    aliases = row.items("answer_aliases")
    if not all(isinstance(alias, str) for alias in aliases):
        raise row.wrong("must be a list of texts", aliases, "answer_aliases")
    return _task(row, [row.text("answer"), *aliases], paragraphs)


def docmath(row: Fields) -> Task:
    """`question`, the number `ground_truth` (or `answer`), and `paragraphs`: texts. Metric `number`."""
    texts = row.texts("paragraphs")
    paragraphs = [{"title": f"Paragraph {number}", "text": text} for number, text in enumerate(texts)]
    return _task(row, [row.text("ground_truth", "answer")], paragraphs, metric="number")


def gaia(row: Fields) -> Task:
    """`Question` and `Final answer`; metric `gaia`. Questions on an attached file (`file_name`) are left out, and those
    of the test set, whose answers are not public ("?")."""
    if str(row.row.get("file_name") or "").strip():
        raise LeftOut("with a file")
    if (answer := row.text("Final answer")) == "?":
        raise LeftOut("without a public answer")
    return _task(row, [answer], metric="gaia")


def webwalker(row: Fields) -> Task:
    """`question`, after which the website `root_url` is named, and `answer`, often a sentence; metric `f1`."""
    task = _task(row, row.texts("answer"), metric="f1")
    return Task(task.id, f"{task.prompt}\n\nThe answer is on this website: {row.text('root_url')}", task.data)


def frames(row: Fields) -> Task:
    """`Prompt` and `Answer`."""
    return _task(row, row.texts("Answer"), question="Prompt")


def _task(
    row: Fields,
    answers: list[str],
    paragraphs: Paragraphs | None = None,
    question: str = "question",
    metric: str | None = None,
) -> Task:
    text = row.text(question)
    data: dict[str, Any] = {"answers": list(dict.fromkeys(answers))}
    if paragraphs is not None:
        data["paragraphs"] = paragraphs
    if metric is not None:
        data["metric"] = metric
    return Task(task_id("search", text), text, data)


def _spaced(sentences: list[str]) -> list[str]:
    """Sentences with a space between them: HotpotQA's begin with one, 2WikiMultiHopQA's do not."""
    return [text if not index or text[:1].isspace() else f" {text}" for index, text in enumerate(sentences)]


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
    "gaia": PublicSet(GAIA, gaia, config="2023_all", splits=VALIDATION),
    **{
        f"gaia-level{level}": PublicSet(GAIA, gaia, config=f"2023_level{level}", splits=VALIDATION)
        for level in (1, 2, 3)
    },
    "webwalkerqa": PublicSet("callanwu/WebWalkerQA", webwalker, splits=WALKER),
    "frames": PublicSet("google/frames-benchmark", frames, splits={"test": "test"}),
}
