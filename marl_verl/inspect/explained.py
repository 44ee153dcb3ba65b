"""Explained rows of a document, of a file, or of a step that a run has stored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from marl_verl import plugins
from marl_verl.errors import MarlError
from marl_verl.inspect.explain import Explanation, Record, derive
from marl_verl.inspect.explain_text import row_text, table_text
from marl_verl.inspect.files import about, unpacked
from marl_verl.journals.kind import holds_episodes


class ExplainedRows(list[Record]):
    """One record per row, in row order; docs/explain.md describes the keys.

    Attributes:
        source: names where the rows come from, e.g. "run 'runs/inventory-1', step 12"; empty for a document.
        difference: how the advantages differ from those that training used; None where they are equal to the bit, and
            for rows that no run has stored.
    """

    def __init__(self, document: object, source: str = "", stored: bool = False) -> None:
        """Compute the advantages of a document as training does.

        Args:
            stored: whether the document must have the advantages that training used.

        Raises:
            MarlError: whatever is wrong with the document, or with a plugin.
        """
        plugins.load()  # an error in a plugin is not one of the document
        with about(source):
            self._derived = derive(document)
            super().__init__(self._derived.records())
        self.source = source
        self.difference = self._difference(document) if stored else None

    @classmethod
    def parse(cls, source: str, content: bytes, stored: bool = False) -> ExplainedRows:
        """From the content of a file: JSON, which may be packed with gzip."""
        return cls(_document(content, source), source, stored)

    def row(self, key: str) -> Record:
        """The record with a key, "{uid}_{session}_{index}". MarlError with the nearest key."""
        with about(self.source):
            return self[self._explanation().row(key)]

    def text(self, row: str | None = None, width: int | None = None) -> str:
        """What `marl-verl explain` prints: a table of all rows, or how one row came by its advantage.

        Args:
            row: the key of one row.
            width: where lines are cut; None cuts nothing.
        """
        with about(self.source):
            if row is not None:
                return row_text(self._explanation(), row, width)
            found = self._derived
            return table_text(found, width) if isinstance(found, Explanation) else found.text(width)

    def _explanation(self) -> Explanation:
        if isinstance(self._derived, Explanation):
            return self._derived
        raise MarlError("--row names the row of an agent, and here rows are games: leave it out")

    def _difference(self, document: object) -> str | None:
        then = document.get("advantage") if isinstance(document, Mapping) else None
        if not isinstance(self._derived, Explanation) or not isinstance(then, list) or len(then) != len(self):
            raise MarlError(f"{self.source} is damaged: it lacks the advantage of each row, as training used it")
        changed = [row for row, record in enumerate(self) if record["advantage"] != then[row]]
        if not changed:
            return None
        first = self[changed[0]]
        return (
            f"{self.source}: {len(changed)} of {len(self)} advantages are not what training used, e.g. row "
            f"'{first['key']}' had {then[changed[0]]} and gets {first['advantage']} here: a plugin or a version has "
            "changed (plugins.json in the run has those of training)"
        )


def _document(content: bytes, source: str) -> Any:
    content = unpacked(content, source)
    if holds_episodes(content):
        raise MarlError(f"{source} holds episodes, which `marl-verl replay` shows; rows are in rows/ of a run")
    try:
        return json.loads(content, parse_int=lambda digits: _whole(digits, source))
    except (ValueError, RecursionError) as error:
        raise MarlError(f"{source} is not JSON: {error}") from error


def _whole(digits: str, source: str) -> int:
    if len(digits) > 18:
        raise MarlError(f"{source} has a whole number of {len(digits)} digits: {digits[:18]}...")
    return int(digits)
