"""Convert MuSiQue's files (musique_ans_v1.0_train.jsonl, ...) to rows of `multi-hop-paragraphs`.

    python -m marl_verl_sharp.musique musique_ans_v1.0_train.jsonl data/musique/train.jsonl

Each line has `id`, `question`, `answer`, `answer_aliases`, `paragraphs` (`title`, `paragraph_text`) and, in the
full version, `answerable`; unanswerable questions are skipped. Source: Trivedi et al. 2022, arXiv 2108.00573, and
the format that its repository describes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from marl_verl.errors import MarlError
from marl_verl.tasks import Task, read_rows, write_tasks


def tasks_of(source: Path) -> Iterator[Task]:
    """The tasks of MuSiQue's rows, in order. MarlError: no such file, or a row lacks a required field."""
    for number, row in read_rows(source):
        if row.get("answerable", True):
            yield _task(row, f"'{source}', row {number}")


def _task(row: dict[str, Any], where: str) -> Task:
    for name, kind in (("id", str), ("question", str), ("answer", str), ("answer_aliases", list), ("paragraphs", list)):
        if not isinstance(row.get(name), kind):
            raise MarlError(f"{where} has no {'text' if kind is str else 'list'} '{name}'")
    paragraphs = []
    for paragraph in row["paragraphs"]:
        for name in ("title", "paragraph_text"):
            if not isinstance(paragraph, dict) or not isinstance(paragraph.get(name), str):
                raise MarlError(f"{where} has a paragraph without the text '{name}'")
        paragraphs.append({"title": paragraph["title"], "text": paragraph["paragraph_text"]})
    data = {"answer": row["answer"], "aliases": row["answer_aliases"], "paragraphs": paragraphs}
    return Task(row["id"], row["question"], data)


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert one file. Exit code 2 and an error message if that fails."""
    parser = argparse.ArgumentParser(prog="python -m marl_verl_sharp.musique", description=main.__doc__)
    parser.add_argument("source", type=Path, help="musique_ans_v1.0_*.jsonl")
    parser.add_argument("target", type=Path, help="rows with id, prompt, data")
    given = parser.parse_args(arguments)
    try:
        tasks = list(tasks_of(given.source))
        if not tasks:
            raise MarlError(f"'{given.source}' has no question with an answer")
        write_tasks(tasks, given.target)
    except MarlError as error:
        print(f"marl-verl: {error}", file=sys.stderr)
        return 2
    print(f"{len(tasks)} questions to {given.target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
