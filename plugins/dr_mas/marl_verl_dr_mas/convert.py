"""Convert public data sets to task files for `marl.task.train_file`: JSON lines with id, prompt, data.

    python -m marl_verl_dr_mas.convert math dapo.parquet data/dr_mas_math/train.jsonl
    python -m marl_verl_dr_mas.convert hotpotqa hotpot_train_v1.1.json data/dr_mas_search/train.jsonl

`math` takes rows as DAPO has them (`prompt` as chat messages or text, `reward_model.ground_truth`), or as MATH-500 and
AIME have them (`problem`, `answer`). `hotpotqa` takes the distractor setting of HotpotQA, as its own JSON or as the
hub's parquet (`question`, `answer`, `context`). A file is parquet, JSON lines, or one JSON list. Repeated
questions are skipped.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from marl_verl import MarlError, Task
from marl_verl.errors import missing

_ASKS = re.compile(r"(?:\\n|\s)*Let'?s think step by step[^\n]*\\boxed\{\}[^\n]*\s*$", re.IGNORECASE)
"""Instructions that some data sets append to a problem; removed, since the workflow adds its own."""

Row = Mapping[str, Any]


def math_task(row: Row) -> Task:
    """Task of a problem with its final answer. MarlError for a row of neither form."""
    given = row.get("prompt", row.get("problem"))
    if isinstance(given, Sequence) and not isinstance(given, str) and len(given) == 1:
        given = given[0].get("content")
    answer = row["reward_model"].get("ground_truth") if isinstance(row.get("reward_model"), dict) else row.get("answer")
    if not isinstance(given, str) or answer is None:
        raise MarlError(f"needs prompt and reward_model.ground_truth, or problem and answer; it has {', '.join(row)}")
    problem = _ASKS.sub("", given).strip()
    return Task(_id("math", problem), problem, {"answer": str(answer)})


def hotpotqa_task(row: Row) -> Task:
    """Task of a question with answer and paragraphs. MarlError for a row of another form."""
    question, answer, context = row.get("question"), row.get("answer"), row.get("context")
    if isinstance(context, dict):  # the hub's format, in columns
        context = list(zip(context.get("title", ()), context.get("sentences", ()), strict=True))
    if not isinstance(question, str) or not isinstance(answer, str) or not isinstance(context, list):
        raise MarlError(f"needs question, answer and context; it has {', '.join(row)}")
    paragraphs = [{"title": title, "text": "".join(sentences).strip()} for title, sentences in context]
    return Task(_id("hotpotqa", question), question, {"answers": [answer], "paragraphs": paragraphs})


FORMS: Mapping[str, Callable[[Row], Task]] = {"math": math_task, "hotpotqa": hotpotqa_task}


def convert(form: str, source: Path, target: Path) -> tuple[int, int]:
    """Write the task file.

    Returns:
        (number of tasks written, number of repeated rows skipped).

    Raises:
        MarlError: no such source, an unknown format, or a row without a required field; then nothing is written.
    """
    tasks: dict[str, Task] = {}
    rows = _rows(source)
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise MarlError(f"'{source}', row {number} must be an object, got {row!r:.60}")
        try:
            task = FORMS[form](row)
        except (MarlError, AttributeError, TypeError, ValueError) as error:
            raise MarlError(f"'{source}', row {number} is not a row of '{form}': {error}") from error
        tasks.setdefault(task.id, task)
    if not tasks:
        raise MarlError(f"'{source}' has no rows")
    lines = [json.dumps({"id": task.id, "prompt": task.prompt, "data": task.data}) for task in tasks.values()]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return len(tasks), len(rows) - len(tasks)


def _id(form: str, text: str) -> str:
    """Id from the hash of a text: the same in every file with the question."""
    return f"{form} {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _rows(source: Path) -> list[Any]:
    if not source.is_file():
        raise missing("data file", source, source.parent.glob("*"))
    if source.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        try:
            found: list[Any] = pyarrow.parquet.read_table(source).to_pylist()
        except (pyarrow.ArrowException, OSError) as error:
            raise MarlError(f"'{source}' is not parquet: {str(error).splitlines()[0]}") from error
        return found
    try:
        text = source.read_text(encoding="utf-8")
        if text.lstrip().startswith("["):
            whole: list[Any] = json.loads(text)
            return whole
        return [json.loads(line) for line in text.split("\n") if line.strip()]
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise MarlError(f"'{source}' is neither parquet, JSON lines nor a JSON list: {error}") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert one file. Exit code 2 and an error message if that fails."""
    parser = argparse.ArgumentParser(prog="python -m marl_verl_dr_mas.convert", description=main.__doc__)
    parser.add_argument("form", choices=sorted(FORMS))
    parser.add_argument("source", type=Path, help=".parquet, .jsonl or .json")
    parser.add_argument("target", type=Path, help=".jsonl")
    given = parser.parse_args(arguments)
    try:
        written, repeated = convert(given.form, given.source, given.target)
    except MarlError as error:
        print(f"convert: {error}", file=sys.stderr)
        return 2
    print(f"{given.target}: {written} tasks" + (f", {repeated} repeated rows left out" if repeated else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
