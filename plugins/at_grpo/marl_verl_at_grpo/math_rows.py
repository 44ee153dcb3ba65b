"""Convert public mathematics data sets to tasks: `python -m marl_verl_at_grpo.math_rows FILE TASKS.jsonl`.

Reads JSON lines, a JSON list or parquet of Polaris, GSM8K, MATH, AIME and similar sets: a problem under `problem`,
`question` or `prompt`, an answer under `answer`, `final_answer` or `solution`, in any case; a list of answers is
joined. Of a solution it takes the text after "####" (GSM8K) or in the last box (MATH). A row's id is a hash of its
problem: a problem in both the training file and the held-out file has the same id in both, which a run rejects.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marl_verl.errors import MarlError
from marl_verl.tasks import read_rows
from marl_verl_at_grpo.final_answer import boxed

PROBLEM = ("problem", "question", "prompt")
ANSWER = ("answer", "final_answer", "solution")


def task_row(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """{"id", "prompt", "data": {"answer"}} of one row. MarlError (beginning with `where`): no problem or answer."""
    problem = _text(row, PROBLEM, where)
    answer = final(_text(row, ANSWER, where))
    name = hashlib.sha256(" ".join(problem.split()).encode()).hexdigest()[:16]
    return {"id": f"math-{name}", "prompt": problem, "data": {"answer": answer}}


def final(solution: str) -> str:
    """The final answer of a solution; a text without a marked answer is the answer itself."""
    if "####" in solution:
        return solution.rpartition("####")[2].strip()
    return boxed(solution) or solution.strip()


def _text(row: Mapping[str, Any], names: tuple[str, ...], where: str) -> str:
    small = {str(name).lower(): value for name, value in row.items()}
    for name in names:
        value = small.get(name)
        if isinstance(value, list):  # all of them belong to the answer
            value = ", ".join(map(str, value))
        if isinstance(value, str | int | float) and not isinstance(value, bool) and str(value).strip():
            return str(value).strip()
    raise MarlError(f"{where} has none of {', '.join(names)} as text: it has {', '.join(map(str, row)) or 'nothing'}")


def convert(source: Path, target: Path) -> int:
    """Write the tasks of a file, each problem once. Returns their number. On a MarlError no file is written."""
    tasks: dict[str, dict[str, Any]] = {}
    for number, row in read_rows(source):
        task = task_row(row, f"'{source}', row {number}")
        tasks.setdefault(task["id"], task)
    if not tasks:
        raise MarlError(f"'{source}' has no rows")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("".join(json.dumps(task) + "\n" for task in tasks.values()), encoding="utf-8")
    return len(tasks)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m marl_verl_at_grpo.math_rows", description=__doc__)
    parser.add_argument("source", type=Path, metavar="FILE")
    parser.add_argument("target", type=Path, metavar="TASKS.jsonl")
    given = parser.parse_args()
    try:
        print(f"{convert(given.source, given.target)} problems in {given.target}")
    except MarlError as error:
        print(f"math_rows: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
