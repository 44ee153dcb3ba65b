"""Convert public data sets to task files for `marl.task.train_file`: JSON lines with id, prompt, data.

    python -m marl_verl_dr_mas.convert math dapo.parquet data/dr_mas_math/train.jsonl
    python -m marl_verl_dr_mas.convert hotpotqa hotpot_train_v1.1.json data/dr_mas_search/train.jsonl

`math` takes rows as DAPO has them (`prompt` as chat messages or text, `reward_model.ground_truth`), or as MATH-500 and
AIME have them (`problem` or `question`, `answer`); a list of answers is joined. `hotpotqa` takes the distractor setting
of HotpotQA, as its own JSON or as the hub's parquet (`question`, `answer` or a list of accepted answers, `context`). A
file is parquet, JSON lines, or one JSON list. Repeated questions are skipped.
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
from marl_verl.tasks import read_rows

_ASKS = re.compile(r"(?:\\n|\s)*Let'?s think step by step[^\n]*\\boxed\{\}[^\n]*\s*$", re.IGNORECASE)
"""Instructions that some data sets append to a problem; removed, since the workflow adds its own."""

Row = Mapping[str, Any]


def math_task(row: Row) -> Task:
    """Task of a problem with its final answer. MarlError for a row of neither form."""
    given = next((row[name] for name in ("prompt", "problem", "question") if name in row), None)
    if isinstance(given, Sequence) and not isinstance(given, str) and len(given) == 1:
        given = given[0].get("content")
    answer = row["reward_model"].get("ground_truth") if isinstance(row.get("reward_model"), dict) else row.get("answer")
    if isinstance(answer, list):
        answer = ", ".join(map(str, answer)) or None
    if not isinstance(given, str) or answer is None:
        wanted = "needs prompt and reward_model.ground_truth, or problem (or question) and answer"
        raise MarlError(f"{wanted}; it has {', '.join(row)}")
    problem = _ASKS.sub("", given).strip()
    return Task(_id("math", problem), problem, {"answer": str(answer)})


def hotpotqa_task(row: Row) -> Task:
    """Task of a question with answer and paragraphs. MarlError for a row of another form."""
    question, answer, context = row.get("question"), row.get("answer"), row.get("context")
    if isinstance(context, dict):  # the hub's format, in columns
        context = list(zip(context.get("title", ()), context.get("sentences", ()), strict=True))
    answers = [answer] if isinstance(answer, str) else answer
    right = isinstance(answers, list) and bool(answers) and all(isinstance(each, str) for each in answers)
    if not isinstance(question, str) or not right or not isinstance(context, list):
        raise MarlError(f"needs question, answer and context; it has {', '.join(row)}")
    paragraphs = [{"title": title, "text": "".join(sentences).strip()} for title, sentences in context]
    return Task(_id("hotpotqa", question), question, {"answers": answers, "paragraphs": paragraphs})


FORMS: Mapping[str, Callable[[Row], Task]] = {"math": math_task, "hotpotqa": hotpotqa_task}


def convert(form: str, source: Path, target: Path) -> tuple[int, int]:
    """Write the task file.

    Returns:
        (number of tasks written, number of repeated rows skipped).

    Raises:
        MarlError: no such source, an unknown format, or a row without a required field; then nothing is written.
    """
    tasks: dict[str, Task] = {}
    rows = list(read_rows(source, "data file"))
    for number, row in rows:
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
