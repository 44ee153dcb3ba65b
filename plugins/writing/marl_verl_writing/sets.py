"""Public sets of posts and abstracts."""

from __future__ import annotations

from collections.abc import Mapping

from marl_verl.tasks import Fields, PublicSet, Split, Task, task_id


def tldr(row: Fields) -> Task:
    """A post in `prompt`, without the request for a summary at its end, which the workflow adds."""
    post = row.text("prompt").removesuffix("TL;DR:").rstrip()
    return Task(task_id("tldr", post), post)


def arxiv(row: Fields) -> Task:
    """An abstract in `abstract_text` or `abstract`, in one line."""
    abstract = " ".join(row.text("abstract_text", "abstract").split())
    return Task(task_id("arxiv", abstract), abstract)


ARXIV: Mapping[Split, str] = {"train": "train", "test": "val"}

SETS: Mapping[str, PublicSet] = {
    "tldr": PublicSet("trl-lib/tldr", tldr),
    "arxiv": PublicSet("OpenMLRL/arXiv_abstract", arxiv, splits=ARXIV),
}
