"""Where a workflow searches, by its option `source`; README.md has the forms of corpora, servers and functions."""

import asyncio
import functools
import inspect
import pkgutil
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from marl_verl_datasets import Fields

from marl_verl import Task, Workflow
from marl_verl.episode import CallError, Team
from marl_verl.errors import MarlError, user_error
from marl_verl.tasks import read_rows

PARAGRAPHS = "paragraphs"
SECONDS, TRIES = 60.0, 3
NOT_FOUND = ("ValueError", "LookupError")  # what a search of `source` raises where nothing can be found
K1, B = 1.5, 0.75


class Searching(Workflow):
    """Base of workflows that search.

    Options:
        source: `paragraphs` of the question, a corpus (data/wiki.jsonl), a retrieval server (http://...), or a function
            of yours (web:my_package.search:find).
    """

    source: str = PARAGRAPHS

    def __post_init__(self) -> None:
        if self.source.startswith("web:"):
            function(self.source)
        elif self.source != PARAGRAPHS and not self.source.startswith(("http://", "https://")):
            corpus(Path(self.source).expanduser())

    def check_source(self, task: Task) -> None:
        """MarlError if a task lacks the paragraphs to search."""
        if self.source == PARAGRAPHS:
            paragraphs_of(task)

    def finder(self, task: Task) -> Callable[[str, int], Any]:
        """An async function (query, most) -> texts, best first, for `team.call`. It raises ValueError or LookupError
        where nothing can be found, another error where the search fails."""

        async def find(query: str, most: int) -> list[str]:
            if "://" in self.source:
                return await ask(self.source, query, most)
            if self.source.startswith("web:"):
                texts = function(self.source)(query, most)
                return list(await texts if inspect.isawaitable(texts) else texts)
            if self.source == PARAGRAPHS:
                return paragraphs_of(task).search(query, most)
            index = await asyncio.to_thread(corpus, Path(self.source).expanduser())
            return await asyncio.to_thread(index.search, query, most)

        return find

    async def searched(self, team: Team, agent: str, task: Task, query: str, most: int) -> list[str]:
        """The texts of a search, a recorded call. CallError where nothing can be found. RuntimeError, which fails the
        attempt, where the search itself fails: agents would learn without it from then on."""
        try:
            return list(await team[agent].call(self.finder(task), query, most))
        except CallError as error:
            if error.kind in NOT_FOUND:
                raise
            raise RuntimeError(f"the search failed with {error.kind}: {error}") from error


async def ask(url: str, query: str, most: int) -> list[str]:
    """Query a retrieval server, at most three times. RuntimeError with the reason if it fails."""
    import httpx  # a run with memory imports this module, and asks no server

    body = {"queries": [query], "topk": most, "return_scores": True}
    why = ""
    for attempt in range(TRIES):
        try:
            async with httpx.AsyncClient(timeout=SECONDS) as client:
                answer = await client.post(url, json=body)
                answer.raise_for_status()
                (documents,) = answer.json()["result"]
                return [document(Fields(entry.get("document", entry), "document")) for entry in documents[:most]]
        except (httpx.HTTPError, MarlError, ValueError, KeyError, TypeError, AttributeError) as error:
            why = f"{type(error).__name__}: {error}"
        await asyncio.sleep(0.5 * attempt)
    raise RuntimeError(f"the retrieval server {url} failed {TRIES} times. Is it running? Last: {why}")


@functools.cache
def function(source: str) -> Callable[[str, int], Any]:
    """The function of "web:package.module:name". MarlError if it cannot be imported."""
    with user_error(f"source '{source}' cannot be imported", ImportError, ValueError, AttributeError):
        return pkgutil.resolve_name(source.removeprefix("web:"))


class Index:
    """Texts to search, as "title: text"; the first search makes the index."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts

    @functools.cached_property
    def _scorer(self) -> Any:
        """None if no text has a word."""
        words = [_words(text) for text in self._texts]
        if not any(words):
            return None
        import bm25s  # seconds: it compiles

        scorer = bm25s.BM25(k1=K1, b=B, method="lucene")
        scorer.index(words, show_progress=False)
        return scorer

    def best(self, query: str, most: int) -> list[str]:
        """The best texts with a word of the query, best first; ties keep their order."""
        words = sorted(set(_words(query)))
        if not words or self._scorer is None:
            return []
        scores = self._scorer.get_scores(words)
        return [self._texts[place] for place in np.argsort(-scores, kind="stable")[:most] if scores[place] > 0]

    def search(self, query: str, most: int) -> list[str]:
        """As `best`. ValueError: there is no word in the query. LookupError: none of its words is in any text."""
        if not _words(query):
            raise ValueError("the query has no word")
        if not (texts := self.best(query, most)):
            raise LookupError("no paragraph has a word of the query")
        return texts


_of_texts = functools.lru_cache(maxsize=256)(Index)


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
    """The index of a corpus file. MarlError for a row that is no document, or without any."""
    rows = (Fields(row, f"corpus '{path}', row {number}") for number, row in read_rows(path, "corpus"))
    if not (texts := tuple(map(document, rows))):
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
    return re.findall(r"\w+", text.lower())
