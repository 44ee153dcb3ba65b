"""Multi-hop questions with their paragraphs in the row: the format of MuSiQue.

A row is `{"id": ..., "prompt": the question, "data": {"answer": ..., "aliases": [...], "paragraphs": [{"title": ...,
"text": ...}, ...]}}`. `python -m marl_verl_sharp.musique` makes such rows from MuSiQue's files.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from typing import Any

from marl_verl.errors import MarlError
from marl_verl.tasks import Task, TaskSet

PUNCTUATION = str.maketrans("", "", string.punctuation)
ARTICLES = re.compile(r"\b(a|an|the)\b")


class MultiHopParagraphs(TaskSet):
    """Questions from a file, scored by exact match; it generates none."""

    def score(self, task: Task, answer: Any) -> float:
        """Terminal accuracy: 1 where the answer is the task's answer or one of its aliases, after normalisation.

        Raises:
            MarlError: the answer is not text, or the row has another form.
        """
        if not isinstance(answer, str):
            raise MarlError(f"multi-hop-paragraphs scores a text, got {type(answer).__name__}")
        right = task.data.get("answer"), *task.data.get("aliases", [])
        if not all(isinstance(each, str) for each in right):
            raise MarlError(f"the data of task '{task.id}' must have a text 'answer' and a list of texts 'aliases'")
        return float(normalised(answer) in {normalised(each) for each in right})

    def public_score(self, task: Task, answer: Any) -> float:
        """1 if the answer is not empty, else 0: computed without the solution."""
        return float(isinstance(answer, str) and bool(normalised(answer)))


def normalised(text: str) -> str:
    """Lower case, without punctuation, articles and repeated white space (SQuAD, arXiv 1606.05250)."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def paragraphs_of(task: Task) -> list[Mapping[str, str]]:
    """The paragraphs of a row. MarlError without any, or for one without title and text."""
    found = task.data.get("paragraphs")
    if not isinstance(found, list) or not found:
        raise MarlError(f"the data of task '{task.id}' has no 'paragraphs': a list of title and text each")
    for number, paragraph in enumerate(found):
        texts = paragraph if isinstance(paragraph, Mapping) else {}
        if not isinstance(texts.get("title"), str) or not isinstance(texts.get("text"), str):
            raise MarlError(f"paragraph {number} of task '{task.id}' must have the texts 'title' and 'text'")
    return found
