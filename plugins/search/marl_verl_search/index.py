"""BM25 over texts, by bm25s: the paragraphs of one question, or a corpus.

    python -m marl_verl_search.index corpus.jsonl data/wiki-index

writes the index of a corpus once: JSON lines, a JSON list or parquet with `title` and `text` (and `url`, which is
shown), or with `contents`, whose first line is the title (as Search-R1's corpora). Rollout workers map it into memory;
a file is indexed by each of them.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from marl_verl.errors import MarlError
from marl_verl.tasks import Fields, Task, read_rows

K1, B = 1.5, 0.75


class Index:
    """Texts to search, as "title: text"."""

    def __init__(self, texts: Sequence[str], scorer: Any = None) -> None:
        self._texts, self._scorer = texts, scorer
        words = [_words(text) for text in texts] if scorer is None else []
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
        return [_shown(self._texts[place]) for place in places]

    def save(self, folder: Path) -> None:
        """Write the index and its texts to a folder."""
        self._scorer.save(str(folder), corpus=[{"text": text} for text in self._texts], show_progress=False)


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
    """The index of a corpus file, or a folder that `save` wrote. MarlError for another file or folder."""
    if path.is_dir():
        import bm25s

        try:
            loaded = bm25s.BM25.load(str(path), mmap=True, load_corpus=True)
        except (OSError, ValueError, KeyError) as error:
            raise MarlError(f"'{path}' is no index of marl_verl_search.index: {error}") from error
        return Index(loaded.corpus, loaded)
    rows = (Fields(row, f"corpus '{path}', row {number}") for number, row in read_rows(path, "corpus"))
    texts = [contents(row.text("contents")) if "contents" in row else _both(row) for row in rows]
    if not texts:
        raise MarlError(f"corpus '{path}' is empty")
    return Index(texts)


def contents(text: str) -> str:
    """A text in the form of Search-R1's corpora, the title in the first line, as "title: text"."""
    title, line, rest = text.strip().partition("\n")
    title = title.strip().strip('"')
    return f"{title}: {rest.strip()}" if line else title


def _both(fields: Fields) -> str:
    url = f" ({fields.text('url')})" if "url" in fields else ""
    return f"{fields.text('title')}: {fields.text('text')}{url}"


def _shown(text: Any) -> str:
    return str(text["text"]) if isinstance(text, Mapping) else str(text)


def _words(text: str) -> list[str]:
    import bm25s

    options = {"stopwords": [], "token_pattern": r"\w+", "return_ids": False, "show_progress": False}
    words: list[str] = bm25s.tokenize([text], **options)[0]
    return words


def main(arguments: Sequence[str] | None = None) -> int:
    """Index a corpus. Exit code 2 and an error message if that fails."""
    parser = argparse.ArgumentParser(prog="python -m marl_verl_search.index", description="Index a corpus.")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args(arguments)
    try:
        corpus(options.corpus).save(options.folder)
    except MarlError as error:
        print(f"marl_verl_search.index: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
