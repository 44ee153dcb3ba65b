"""Convert public data sets to task files: `python -m marl_verl_magrpo.convert KIND FROM TO [options]`.

    tldr       rows with the post in `prompt`, as in the TL;DR data sets  -> task `joint-writing`
    arxiv      rows with an abstract in `abstract_text`, or `abstract`    -> task `joint-writing`, bands arxiv
    humaneval  rows with `prompt`, `entry_point`, `test`, as HumanEval    -> task `joint-code`

FROM holds JSON lines, a JSON list or parquet, TO is written as JSON lines with `id`, `prompt` and `data`.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from marl_verl import MarlError, Task
from marl_verl.tasks import read_rows

Row = Mapping[str, Any]


def tldr(row: Row, number: int) -> Task:
    """Task of a post, without the request for a summary at its end, which the workflow adds."""
    return Task(f"tldr-{number}", _text(row, number, "prompt").removesuffix("TL;DR:").rstrip(), {})


def arxiv(row: Row, number: int) -> Task:
    """Task of an abstract."""
    name = "abstract_text" if "abstract_text" in row else "abstract"
    return Task(f"arxiv-{number}", " ".join(_text(row, number, name).split()), {})


def humaneval(row: Row, number: int) -> Task:
    """Task of a function to write. Each assertion in the body of `check` is a test, as is each block with
    assertions in it; all other statements of the file are the setup."""
    entry = _text(row, number, "entry_point")
    try:
        body = ast.parse(_text(row, number, "test")).body
    except SyntaxError as error:
        raise MarlError(f"row {number}: 'test' is not Python: {error}") from error
    checks = [each for each in body if isinstance(each, ast.FunctionDef) and each.name == "check"]
    if len(checks) != 1:
        raise MarlError(f"row {number}: 'test' has no function 'check'")
    tests = [each for each in checks[0].body if _asserts(each)]
    if not tests:
        raise MarlError(f"row {number}: 'check' asserts nothing")
    setup = [each for each in body if each is not checks[0] and not isinstance(each, ast.If)]
    setup += [each for each in checks[0].body if each not in tests and not isinstance(each, ast.Expr | ast.Pass)]
    data = {"entry": entry, "setup": "\n".join(map(ast.unparse, setup)), "tests": [ast.unparse(each) for each in tests]}
    name = row.get("task_id")
    return Task(str(name) if name is not None else f"humaneval-{number}", _text(row, number, "prompt"), data)


KINDS: Mapping[str, Callable[[Row, int], Task]] = {"tldr": tldr, "arxiv": arxiv, "humaneval": humaneval}


def convert(
    kind: str, source: Path, target: Path, most_words: int | None = None, take: tuple[int, int] | None = None
) -> int:
    """Convert a file of rows to a file of tasks.

    Args:
        most_words: rows with a longer prompt are left out.
        take: (first row, row after the last), from 0, of those that are left; None takes all.

    Returns:
        How many tasks were written.

    Raises:
        MarlError: no such file, a row without a required field, or nothing to write; `target` is then not written.
    """
    tasks = [KINDS[kind](row, number) for number, row in read_rows(source)]
    kept = [task for task in tasks if most_words is None or len(task.prompt.split()) <= most_words]
    kept = kept if take is None else kept[take[0] : take[1]]
    if not kept:
        raise MarlError(f"nothing to write: '{source}' has {len(tasks)} rows, and none of those asked for")
    target.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"id": task.id, "prompt": task.prompt, "data": task.data}) for task in kept]
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return len(kept)


def _text(row: Row, number: int, name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise MarlError(f"row {number} has no text '{name}': it has {', '.join(map(str, row)) or 'nothing'}")
    return value


def _asserts(statement: ast.stmt) -> bool:
    return any(isinstance(node, ast.Assert) for node in ast.walk(statement)) and not isinstance(
        statement, ast.FunctionDef | ast.ClassDef
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Exit code 2 and an error message for a user error."""
    parser = argparse.ArgumentParser(prog="python -m marl_verl_magrpo.convert", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("source", type=Path, metavar="FROM")
    parser.add_argument("target", type=Path, metavar="TO")
    parser.add_argument("--most-words", type=int, default=None, help="leave out rows with a longer prompt")
    parser.add_argument("--take", type=int, nargs=2, default=None, metavar=("FIRST", "END"), help="rows, from 0")
    given = parser.parse_args(arguments)
    take = None if given.take is None else (given.take[0], given.take[1])
    try:
        count = convert(given.kind, given.source, given.target, given.most_words, take)
    except MarlError as error:
        print(f"convert: {error}", file=sys.stderr)
        return 2
    print(f"{count} tasks in {given.target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
