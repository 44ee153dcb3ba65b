"""Names and what stands behind them: one entry per registered part, with who registered it."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass, field
from typing import Any

from marl_verl.errors import MarlError, nearest, unknown
from marl_verl.extras import extra_of
from marl_verl.hookspecs import KINDS

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_LAZY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True)
class Source:
    """Where a plugin comes from: the entry point's name and target, and the distribution that has it."""

    plugin: str
    distribution: str
    version: str
    target: str

    def __str__(self) -> str:
        return f"{self.distribution} {self.version} (plugin '{self.plugin}')"


@dataclass(frozen=True)
class Entry:
    """A registered name. `target` is the object, or the "package.module:attribute" that is imported on first use."""

    kind: str
    name: str
    target: object
    distribution: str
    version: str
    plugin: str

    @property
    def source(self) -> str:
        """Who registered it, for error messages."""
        return f"{self.distribution} {self.version} (plugin '{self.plugin}')"

    @property
    def shown(self) -> str:
        """The target as "package.module:attribute" where it has such a name, else its repr."""
        if isinstance(self.target, str):
            return self.target
        module, name = getattr(self.target, "__module__", None), getattr(self.target, "__qualname__", None)
        return f"{module}:{name}" if module and name else repr(self.target)


@dataclass
class Registry:
    """All registered names of a process, by kind."""

    disabled: tuple[str, ...] = ()  # plugins that are installed and were not loaded
    _entries: dict[str, dict[str, Entry]] = field(default_factory=lambda: {kind: {} for kind in KINDS})
    _loaded: dict[tuple[str, str], Any] = field(default_factory=dict)

    def add(self, kind: str, name: str, target: object, source: Source) -> None:
        """Register `target` under `name`.

        Raises:
            MarlError: the name is taken (both distributions are named) or malformed, or a lazy target is malformed.
        """
        what = f"{KINDS[kind]} {name!r} of {source}"
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise MarlError(f"{what}: a name is made of letters, digits and . _ + -")
        if target is None:
            raise MarlError(f"{what}: the target is None")
        if isinstance(target, str) and not _LAZY.fullmatch(target):
            raise MarlError(f"{what}: '{target}' is not of the form 'package.module:attribute'")
        taken = self._entries[kind].get(name)
        if taken:
            raise MarlError(f"{KINDS[kind]} '{name}' is registered twice: by {taken.source} and by {source}")
        self._entries[kind][name] = Entry(kind, name, target, source.distribution, source.version, source.plugin)

    def names(self, kind: str) -> list[str]:
        """The registered names of a kind, sorted."""
        return sorted(self._of(kind))

    def entries(self, kind: str) -> list[Entry]:
        """The entries of a kind, sorted by name."""
        return [entry for _, entry in sorted(self._of(kind).items())]

    def entry(self, kind: str, name: str) -> Entry:
        """Who supplies a name, without importing it.

        MarlError if nobody does: with the command that installs the plugin that would, or with the nearest name.
        """
        if name not in self._of(kind):
            if (extra := extra_of(kind, name)) in self.disabled:
                what = f"{KINDS[kind]} '{name}' is of plugin '{extra}'"
                raise MarlError(f"{what}, which MARL_VERL_PLUGINS leaves out: add '{extra}' to it, or unset it")
            if extra is not None:
                what = f"{KINDS[kind]} '{name}' comes with marl-verl-{extra}"
                raise MarlError(f"{what}, which is not installed: pip install 'marl-verl[{extra}]'")
            raise unknown(KINDS[kind], name, self._of(kind))
        return self._of(kind)[name]

    def get(self, kind: str, name: str) -> Any:
        """The object behind a name; a lazy target is imported now, once.

        Raises:
            MarlError: unknown name (the nearest is offered), or a lazy target that cannot be imported.
        """
        entry = self.entry(kind, name)
        if (kind, name) not in self._loaded:
            self._loaded[kind, name] = resolve(entry) if isinstance(entry.target, str) else entry.target
        return self._loaded[kind, name]

    def _of(self, kind: str) -> dict[str, Entry]:
        if kind not in self._entries:
            raise unknown("kind of part", kind, KINDS)
        return self._entries[kind]


def cause(error: Exception) -> str:
    """A foreign exception in one line, e.g. "ModuleNotFoundError: No module named 'x'"."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def resolve(entry: Entry) -> Any:
    """Import a lazy target. MarlError naming target, distribution and cause if that fails."""
    target = str(entry.target)
    module_name, _, path = target.partition(":")
    what = f"{KINDS[entry.kind]} '{entry.name}' of {entry.source}"
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # whatever a foreign module raises is told with its name, and kept as the cause
        raise MarlError(f"{what}: cannot import '{target}': {cause(error)}") from error
    for part in path.split("."):
        if not hasattr(found, part):
            hint = nearest(part, [name for name in dir(found) if not name.startswith("_")])
            raise MarlError(f"{what}: cannot import '{target}': it has no '{part}'; {hint}")
        found = getattr(found, part)
    return found
