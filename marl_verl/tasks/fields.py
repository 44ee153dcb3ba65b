"""The fields of a row of a data set, read with errors that name file, row and field; and tags in an agent's text."""

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from marl_verl.errors import MarlError, nearest, shown


class Fields:
    """One row. Names are compared without case; where a method takes several, the first that the row has is read.

    Attributes:
        where: file and row, the beginning of every error message.
        read: name -> the column that was read under it.
    """

    def __init__(self, row: Mapping[str, Any], where: str) -> None:
        self.row, self.where = row, where
        self.read: dict[str, str] = {}
        self._lower = {str(name).lower(): name for name in row}

    def __contains__(self, name: str) -> bool:
        return self.row.get(self._lower.get(name.lower(), name)) is not None

    def value(self, *names: str) -> Any:
        """The value of a field. MarlError without one, or if it is null."""
        for name in names:
            if name in self:
                self.read[name] = self._lower[name.lower()]
                return self.row[self.read[name]]
        hint = nearest(names[0], map(str, self.row)) if self.row else "the row is empty"
        raise MarlError(f"{self.where} has no field {' or '.join(map(repr, names))}: {hint}")

    def text(self, *names: str) -> str:
        """A field's text without white space around it; a number as text. MarlError if it is empty or no text."""
        value = self.value(*names)
        if _is_text(value) and str(value).strip():
            return str(value).strip()
        raise self.wrong("must be a text", value, *names)

    def texts(self, *names: str) -> list[str]:
        """A field's list of texts; a single text or number as a list. MarlError if it is empty, or holds no texts."""
        value = self.value(*names)
        values = value if isinstance(value, list | tuple) else [value]
        texts = [str(text).strip() for text in values if str(text).strip()] if all(map(_is_text, values)) else []
        if not texts:
            raise self.wrong("must be a text, or a list of texts", value, *names)
        return texts

    def items(self, *names: str) -> list[Any]:
        """A field's list, also one that is written as JSON text. MarlError if it is no list."""
        return list(self._decoded(list, "a list", *names))

    def inner(self, *names: str) -> "Fields":
        """The fields of a field's object, also one that is written as JSON text. MarlError if it is no object."""
        return Fields(self._decoded(dict, "an object", *names), f"{self.where}, field '{self._name(*names)}'")

    def wrong(self, message: str, value: Any, *names: str) -> MarlError:
        """The error for a field's value, e.g. `wrong("must be a text", 3, "answer")`."""
        return MarlError(f"{self.where}: field '{self._name(*names)}' {message}, got {shown(value)}")

    def _decoded(self, kind: type, wanted: str, *names: str) -> Any:
        value = self.value(*names)
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(value) if isinstance(value, str) else value
        if not isinstance(value, kind):
            raise self.wrong(f"must be {wanted}, or its JSON text", value, *names)
        return value

    def _name(self, *names: str) -> str:
        return next((str(self._lower[name.lower()]) for name in names if name in self), names[0])


def _is_text(value: Any) -> bool:
    """Whether a value is a text or a number. NaN is none: it is what data frames write for a missing value."""
    return isinstance(value, str | int | float) and not isinstance(value, bool) and value == value


_VERDICT = re.compile(r"<verify>\s*(\w+)\s*</verify>", re.IGNORECASE)


def verdict(text: str, words: Sequence[str]) -> str | None:
    """The one of `words` (lower case) in `<verify>` tags; None without one, or with different ones."""
    verdicts = {word.lower() for word in _VERDICT.findall(text)} & set(words)
    return verdicts.pop() if len(verdicts) == 1 else None


def clipped(text: str, most: int) -> str:
    """A text of at most `most` characters: cut in the middle, since the end has the answer or verdict."""
    if len(text) <= most:
        return text
    cut = "\n[...]\n"
    head = max(0, (most - len(cut)) // 2)
    tail = max(0, most - len(cut) - head)
    return text[:head] + cut + text[len(text) - tail :]


KEY = "marl.task.options.fields"
Columns = Mapping[str, str | Sequence[str]]
"""Name that is read -> column, or columns whose texts are joined."""


def with_fields(row: Mapping[str, Any], fields: Columns, where: str) -> dict[str, Any]:
    """A row with the columns of `fields` under the names that are read. MarlError if a column is missing."""
    columns, lower = Fields(row, where), {name.lower() for name in fields}
    named = {
        name: columns.value(column)
        if isinstance(column, str)
        else "\n\n".join(_text(columns.value(part)) for part in column)
        for name, column in fields.items()
    }
    return {column: value for column, value in row.items() if str(column).lower() not in lower} | named


def unread(row: Mapping[str, Any], read: Mapping[str, str], fields: Columns) -> list[str]:
    """The columns of a row that a task does not read. `read`: name -> the column that was read under it."""
    mapped = (column for columns in fields.values() for column in ([columns] if isinstance(columns, str) else columns))
    known = {*read.values(), *mapped}
    return [str(column) for column in row if column not in known]


def _text(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)
