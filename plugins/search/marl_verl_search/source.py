"""Where a workflow searches, by its option `source`:

    paragraphs                              the paragraphs of the question
    data/wiki.jsonl                         a corpus (see `marl_verl_search.index`)
    http://127.0.0.1:8000/retrieve          a retrieval server, in the protocol of Search-R1 and verl
    web:my_package.search:find              a function of yours, e.g. a client of a web search

A server gets {"queries": [text], "topk": n, "return_scores": true} and answers {"result": [[{"document": {"contents":
"title\\ntext"}, "score": 0.9}, ...]]}. A function gets (query, most) and returns a list of texts; it may be async.
"""

import asyncio
import functools
import inspect
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from marl_verl import Task, Workflow
from marl_verl.errors import MarlError
from marl_verl.tasks import Fields
from marl_verl_search.index import corpus, document, paragraphs_of

PARAGRAPHS = "paragraphs"
SECONDS, TRIES = 60.0, 3


class Searching(Workflow):
    """Base of workflows that search.

    Options:
        source: where: `paragraphs` of the question, a corpus, a server, or a function (see the module).
    """

    source: str = PARAGRAPHS

    def __post_init__(self) -> None:
        if self.source.startswith("web:"):
            function(self.source)
        elif self.source != PARAGRAPHS and "://" not in self.source and not Path(self.source).expanduser().is_file():
            raise MarlError(f"no corpus '{self.source}' (or 'paragraphs', http://HOST/retrieve, web:module:function)")

    def check_source(self, task: Task) -> None:
        """MarlError if a task lacks the paragraphs to search."""
        if self.source == PARAGRAPHS:
            paragraphs_of(task)

    def finder(self, task: Task) -> Callable[[str, int], Any]:
        """An async function (query, most) -> texts, best first, for `team.call`.

        It raises ValueError or LookupError where nothing can be found, and RuntimeError where a server fails.
        """

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


async def ask(url: str, query: str, most: int) -> list[str]:
    """Query a retrieval server, at most three times. RuntimeError with the reason if it fails."""
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
    try:
        return pkgutil.resolve_name(source.removeprefix("web:"))  # type: ignore[no-any-return]
    except (ImportError, ValueError, AttributeError) as error:
        raise MarlError(f"source '{source}' cannot be imported: {error}") from error
