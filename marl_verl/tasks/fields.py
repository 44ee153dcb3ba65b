"""The fields of a row of a data set, read with errors that name file, row and field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from marl_verl.errors import MarlError, nearest, shown


class Fields:
    """One row. Names are compared without case; where a method takes several, the first that the row has is read.

    Attributes:
        where: file and row, the beginning of every error message.
    """

    def __init__(self, row: Mapping[str, Any], where: str) -> None:
        self.row, self.where = row, where
        self._lower = {str(name).lower(): name for name in row}

    def __contains__(self, name: str) -> bool:
        return self.row.get(self._lower.get(name.lower(), name)) is not None

    def value(self, *names: str) -> Any:
        """The value of a field. MarlError without one, or if it is null."""
        for name in names:
            if name in self:
                return self.row[self._lower[name.lower()]]
        hint = nearest(names[0], map(str, self.row)) if self.row else "the row is empty"
        raise MarlError(f"{self.where} has no field {' or '.join(map(repr, names))}: {hint}")

    def text(self, *names: str) -> str:
        """A field's text without white space around it; a number as text. MarlError if it is empty or no text."""
        value = self.value(*names)
        if isinstance(value, str | int | float) and not isinstance(value, bool) and str(value).strip():
            return str(value).strip()
        raise self.wrong("must be a text", value, *names)

    def texts(self, *names: str) -> list[str]:
        """A field's list of texts; a single text or number as a list. MarlError if it is empty, or holds no texts."""
        value = self.value(*names)
        values = value if isinstance(value, list | tuple) else [value]
        right = all(isinstance(each, str | int | float) and not isinstance(each, bool) for each in values)
        found = [str(each).strip() for each in values if str(each).strip()] if right else []
        if not found:
            raise self.wrong("must be a text, or a list of texts", value, *names)
        return found

    def items(self, *names: str) -> list[Any]:
        """A field's list, also one that is written as JSON text. MarlError if it is no list."""
        return list(self._decoded(list, "a list", *names))

    def inner(self, *names: str) -> Fields:
        """The fields of a field's object, also one that is written as JSON text. MarlError if it is no object."""
        found = self._decoded(dict, "an object", *names)
        return Fields(found, f"{self.where}, field '{self._name(*names)}'")

    def wrong(self, what: str, value: Any, *names: str) -> MarlError:
        """The error for a field's value, e.g. `wrong("must be a text", 3, "answer")`."""
        return MarlError(f"{self.where}: field '{self._name(*names)}' {what}, got {shown(value)}")

    def _decoded(self, kind: type, what: str, *names: str) -> Any:
        value = self.value(*names)
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError) as error:
                raise self.wrong(f"must be {what}, and its text is not JSON ({error})", value, *names) from error
        if not isinstance(value, kind):
            raise self.wrong(f"must be {what}", value, *names)
        return value

    def _name(self, *names: str) -> str:
        return next((str(self._lower[name.lower()]) for name in names if name in self), names[0])
