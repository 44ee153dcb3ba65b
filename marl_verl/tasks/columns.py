"""Columns of rows that look like a part of the question or the answer; and the option `fields`, the columns read.

marl.task.options.fields: {question: [Body, Question], answer: Answer}
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from marl_verl.errors import MarlError, nearest
from marl_verl.tasks.task import Task

KEY = "marl.task.options.fields"
Columns = Mapping[str, str | Sequence[str]]
"""Name that is read -> column, or columns whose texts are joined. `a.b` is the value of `b` in the column `a`."""
PARTS = {"question": "a part of the question", "answer": "the answer"}
_ASKED = re.compile("(question|problem|prompt|query)(text)?")
_PART = re.compile(
    "body|context|passage|premise|hypothesis|story|background|statement|instruction|input|figure|table|options?|choices?"
    "|(option|choice|distractor|incorrectanswer)([a-h]|[0-9]+)"
)
_FINAL = re.compile("((final|correct|right|gold|golden|expected)(answers?|solution)|groundtruth|answerkey|gold)")
_ANSWER = re.compile("(answers?|target|label|correct|expected|output|solution|result)(text)?")

_CODE = {
    "apps": {"inputoutput"},
    "mbpp": {"testlist", "code"},
    "humaneval": {"entrypoint", "test"},
    "codecontests": {"privatetests"},
    "livecodebench": {"privatetestcases"},
}
"""Public set of programs -> columns that only its rows have."""


def plain_name(column: Any) -> str:
    """A column's name without case, white space and signs: "Correct Answer" and correct_answer are the same."""
    return re.sub(r"[^a-z0-9]", "", str(column).lower())


def like(pattern: re.Pattern[str], columns: Iterable[Any]) -> list[str]:
    """The columns whose names match."""
    return [column for column in columns if pattern.fullmatch(plain_name(column))]


def instead(row: Mapping[str, Any], name: str) -> str | None:
    """The column that looks like the answer, or the question, where a row has no such name; None without one."""
    patterns = (
        [_ASKED] if like(_ASKED, [name]) else [_FINAL, _ANSWER] if like(_FINAL, [name]) + like(_ANSWER, [name]) else []
    )
    return next((column for pattern in patterns for column in like(pattern, row)), None)


def suggestion(row: Mapping[str, Any], question: str, answer: str) -> str | None:
    """The option that reads a row's question and answer under these names; None without columns that look like them."""
    there = [str(column) for column, value in row.items() if value not in (None, "")]
    model = row.get("reward_model")
    inner = ["reward_model.ground_truth"] if isinstance(model, Mapping) and "ground_truth" in model else []
    asked = question if question in there else next(iter(like(_ASKED, there)), None)
    answers = [*inner, *like(_FINAL, there), *like(_ANSWER, there)]
    if asked is None or not answers:
        return None
    parts = [column for column in there if column == asked or like(_PART, [column])]
    shown = [column for column in parts if not plain_name(column).startswith(("incorrect", "distractor"))]
    return option({question: shown, answer: answers[0]})


def reader(row: Mapping[str, Any], split: str, path: Path) -> str | None:
    """How a file is read whose rows are not in verl's form: the task set and its options; None if none fits."""
    columns = {plain_name(column) for column in row}
    name, fields = "math", suggestion(row, "prompt", "answer")
    if {"id", "prompt", "data"} <= columns:
        name, fields = "NAME", None
    elif sets := [name for name, known in _CODE.items() if known <= columns]:
        name, fields = "code-with-tests", f"marl.task.options.{split}={sets[0]}"
    elif columns & {"goldenanswers", "answeraliases", "supportingfacts"}:
        name = "search"
    elif fields is None:
        return None
    files = f"marl.task.name={name} marl.task.{split}_file={path}"
    return f"Task set '{name}' reads such rows: {files}" + (f" '{fields}'" if fields else "")


def option(fields: Columns) -> str:
    """The option `fields` as it is typed."""
    groups = {name: [columns] if isinstance(columns, str) else columns for name, columns in fields.items()}
    typed = {name: [text if re.fullmatch(r"[\w.]+", text) else f"'{text}'" for text in groups[name]] for name in groups}
    values = {name: texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]" for name, texts in typed.items()}
    return f"{KEY}={{{', '.join(f'{name}: {value}' for name, value in values.items())}}}"


def with_fields(row: Mapping[str, Any], fields: Columns, where: str) -> dict[str, Any]:
    """A row with the columns of `fields` under the names that are read. MarlError if a column is missing."""
    named: dict[str, Any] = {}
    for name, columns in fields.items():
        if isinstance(columns, str):
            value = _value(row, columns, name, where)
            message = value[0] if isinstance(value, list) and len(value) == 1 else None
            user = isinstance(message, Mapping) and message.get("role") == "user"  # a prompt in rows of verl's form
            named[name] = message["content"] if user and message and "content" in message else value
        else:
            named[name] = "\n\n".join(_text(_value(row, column, name, where)) for column in columns)
    lower = {name.lower() for name in named}
    return {column: value for column, value in row.items() if str(column).lower() not in lower} | named


def lost(row: Mapping[str, Any], read: Iterable[str], task: Task, fields: Columns) -> tuple[str, str] | None:
    """("question" or "answer", column) of a column that looks like a part of them and that a task does not have; None
    without one.

    Args:
        read: the columns that were read.
        fields: the option, which says what the question or the answer is.
    """
    mapped = [[columns] if isinstance(columns, str) else columns for columns in fields.values()]
    known = {*read, *(column.partition(".")[0] for columns in mapped for column in columns)}
    unread = [column for column in row if column not in (*known, "prompt")]  # rows of verl have it beside the question
    leaves = set(_leaves(task.data))
    kinds = {
        "question": [] if like(_ASKED, fields) else [*like(_ASKED, unread), *like(_PART, unread)],
        "answer": [*like(_FINAL, unread), *([] if task.data else like(_ANSWER, unread))],
    }
    if like(_ANSWER, fields) or like(_FINAL, fields):
        kinds["answer"] = []
    for kind, columns in kinds.items():
        for column in columns:
            text = _text(row[column]).strip()
            if text and text not in leaves and (kind == "answer" or text not in task.prompt):
                return kind, column
    return None


def advice(row: Mapping[str, Any], read: Mapping[str, str], kind: str, column: str) -> str:
    """What to set for a column of `lost`.

    Args:
        read: name -> the column that was read under it.
    """
    if kind == "answer":
        answer = next(iter([*like(_ANSWER, read), *like(_FINAL, read)]), "answer")
        return f"Set {option({answer: column})}."
    name = next(iter(like(_ASKED, read)), None)
    if name is None:
        return "Write it into the question."
    columns = [each for each in row if each in (read[name], column)]
    return f"Set {option({name: columns})}, or {option({name: read[name]})} to leave it out."


def _value(row: Mapping[str, Any], path: str, name: str, where: str) -> Any:
    value: Any = row
    for key in [path] if path in row else path.split("."):
        if not isinstance(value, Mapping) or key not in value:
            hint = nearest(key, map(str, value)) if isinstance(value, Mapping) else "it is no object"
            raise MarlError(f"{where} has no field '{path}' ({KEY}.{name}): {hint}")
        value = value[key]
    return value


def _text(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)


def _leaves(value: Any) -> Iterator[str]:
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else None
    if inner is None:
        yield str(value).strip()
    for part in inner or ():
        yield from _leaves(part)
