"""What becomes of a verl script's overrides: keys translated, dropped, kept for verl, or refused together."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from typing import Any

from marl_verl.config.verl_keys import key_paths, verl_defaults
from marl_verl.errors import MarlError


@dataclass
class Translation:
    """What became of a script's overrides: a recipe, and lines to print.

    Attributes:
        values: the keys of verl that are left to translate -> their values; `lines` has them as overrides.
        overrides: of the recipe: what a recipe cannot have, such as removed keys.
        kept: overrides that are in the recipe as they are.
        translated: (override of the script, what it became).
        dropped: overrides that change nothing of what is trained.
        refused: (reason, override) of those that cannot be honoured.
        experiment: the run's name in trackers.
    """

    values: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, str] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=lambda: {"marl": {}})
    overrides: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    translated: list[tuple[str, str]] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    experiment: str | None = None

    def get(self, key: str) -> Any:
        """A key's value in the script, or verl's default."""
        return self.values.get(key, defaults().get(key))

    def number(self, key: str, default: Any = None) -> float:
        """A key's number in the script, else `default`, else verl's default. MarlError for another value."""
        value = self.values.get(key)
        if value is None:
            value = defaults().get(key) if default is None else default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise MarlError(f"'{key}={'' if value is None else value}' must be a number: write it in the script")
        return value

    def take(self, key: str) -> Any:
        """Remove a key and return its value."""
        self.lines.pop(key, None)
        return self.values.pop(key, None)

    def put(self, key: str, value: Any) -> None:
        """Set a key of the recipe's `marl` section that the script does not set itself."""
        set_key(self.recipe, key, value, keep=True)

    def add(self, key: str, value: Any) -> None:
        """Set a key of verl."""
        text = value if isinstance(value, str) else json.dumps(value)
        self.values[key], self.lines[key] = value, f"{key}={text}"

    def note(self, key: str, text: str) -> None:
        """Remove a key, if the script has it, whose value the recipe has as `text`."""
        if key in self.values:
            self.translated.append((self.lines[key], text))
            self.take(key)

    def become(self, key: str, new: str, value: Any) -> None:
        """Replace a key by a key of a recipe, or by another key of verl, unless the script has that one, too."""
        if new in self.values:
            return self.drop(key)
        if new.startswith("marl."):
            self.put(new, value)
        else:
            self.add(new, value)
        self.note(key, f"{new}={value if isinstance(value, str) else json.dumps(value)}")

    def drop(self, *keys: str) -> None:
        for key in keys:
            if key in self.values:
                self.dropped.append(self.lines[key])
                self.take(key)

    def refuse(self, key: str, reason: str) -> None:
        self.refused.append((reason, self.lines[key]))
        self.take(key)

    def notes(self) -> list[str]:
        """One line of what was translated, and one of what was dropped."""
        notes = []
        if self.translated:
            notes.append(f"translated: {', '.join(f'{old} -> {new}' for old, new in self.translated)}")
        if self.dropped:
            notes.append(f"dropped, it changes nothing of what is trained: {', '.join(self.dropped)}")
        return notes

    def checked(self) -> tuple[dict[str, Any], list[str]]:
        """(recipe, overrides of it). MarlError with all keys that cannot be honoured, grouped by reason."""
        groups: dict[str, list[str]] = {}
        for reason, line in self.refused:
            groups.setdefault(reason, []).append(line)
        if len(self.refused) == 1:
            (reason, line), *_ = self.refused
            raise MarlError(f"'{line}' cannot be honoured: {reason}")
        if groups:
            listed = "".join(f"\n  {reason}\n    {' '.join(lines)}" for reason, lines in groups.items())
            problem = f"{len(self.refused)} settings of the script would change the training and cannot be honoured"
            raise MarlError(f"{problem}:{listed}")
        return self.recipe, self.overrides


@functools.cache
def defaults() -> dict[str, Any]:
    """Every key of verl's own config with its default, where an interpolation is a text."""
    return dict(key_paths(verl_defaults()))


def set_key(content: dict[str, Any], key: str, value: Any, keep: bool = False) -> None:
    """Set a dotted key of nested mappings; `keep`: not where it is set. MarlError for a key below a single value."""
    *sections, last = key.split(".")
    for section in sections:
        content = content.setdefault(section, {})
        if not isinstance(content, dict):
            raise MarlError(f"'{key}' cannot be set: '{section}' is a single value")
    before = content.get(last)
    if isinstance(before, dict) and isinstance(value, dict):
        content[last] = {**value, **before} if keep else {**before, **value}
    elif not (keep and last in content):
        content[last] = value
