"""BM25 over texts, by bm25s: the paragraphs of one question, or a corpus.

A corpus is JSON lines, a JSON list or parquet with `title` and `text`, or with `contents`, whose first line is the
title (as Search-R1's corpora), and perhaps `url`. Each rollout worker indexes it in memory; larger ones need a server.
"""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from marl_verl.errors import MarlError
from marl_verl.tasks import Fields, Task, read_rows

K1, B = 1.5, 0.75


class Index:
    """Texts to search, as "title: text"."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self._scorer: Any = None
        words = [_words(text) for text in texts]
        if any(words):
            import bm25s  # seconds: it compiles

            self._scorer = bm25s.BM25(k1=K1, b=B, method="lucene")
            self._scorer.index(words, show_progress=False)

    def search(self, query: str, most: int) -> list[str]:
        """The best texts with a word of the query, best first; ties keep their order. ValueError: there is no word in
        the query. LookupError: none of its words is in any text."""
        words = sorted(set(_words(query)))
        if not words:
            raise ValueError("the query has no word")
        scores = self._scorer.get_scores(words) if self._scorer is not None else np.zeros(0)
        places = [int(place) for place in np.argsort(-scores, kind="stable")[:most] if scores[place] > 0]
        if not places:
            raise LookupError("no paragraph has a word of the query")
        return [self._texts[place] for place in places]


@functools.lru_cache(maxsize=256)
def _of_texts(texts: tuple[str, ...]) -> Index:
    return Index(texts)


def paragraphs_of(task: Task) -> Index:
    """The index of a task's paragraphs. MarlError without any, or for one without title and text."""
    paragraphs: Any = task.data.get("paragraphs")
    try:
        texts = tuple(f"{paragraph['title']}: {paragraph['text']}" for paragraph in paragraphs)
    except (TypeError, KeyError):
        texts = ()
    if not texts:
        raise MarlError(f"the data of task '{task.id}' has no 'paragraphs', a list of 'title' and 'text' each")
    return _of_texts(texts)


@functools.lru_cache(maxsize=2)
def corpus(path: Path) -> Index:
    """The index of a corpus file. MarlError for another file."""
    rows = (Fields(row, f"corpus '{path}', row {number}") for number, row in read_rows(path, "corpus"))
    if not (texts := list(map(document, rows))):
        raise MarlError(f"corpus '{path}' is empty")
    return Index(texts)


def document(fields: Fields) -> str:
    """A document as "title: text (url)": of `title` and `text`, or of `contents`, whose first line is the title."""
    url = f" ({fields.text('url')})" if "url" in fields else ""
    if "contents" not in fields:
        return f"{fields.text('title')}: {fields.text('text')}{url}"
    title, line, rest = fields.text("contents").partition("\n")
    title = title.strip().strip('"')
    return (f"{title}: {rest.strip()}" if line else title) + url


def _words(text: str) -> list[str]:
    import bm25s

    options = {"stopwords": [], "token_pattern": r"\w+", "return_ids": False, "show_progress": False}
    words: list[str] = bm25s.tokenize([text], **options)[0]
    return words
