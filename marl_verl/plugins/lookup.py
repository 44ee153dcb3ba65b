"""`Plugins`: the parts of this process by kind and name, the source of each, and the broken plugins."""

import functools
import hashlib
import importlib.util
import pkgutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pluggy

from marl_verl.errors import MarlError, unknown, user_error
from marl_verl.extensions import missing_extras
from marl_verl.plugins.registry import KINDS, Entry, Source


@dataclass
class Plugins:
    """The plugins of this process; `plugins.hook.marl_step_finished(step=1, metrics={})` calls every observer."""

    hook: pluggy.HookRelay
    loaded: dict[Source, tuple[str, ...]] = field(default_factory=dict)  # -> hook names; the built-in parts first
    broken: dict[Source, str] = field(default_factory=dict)  # -> why it could not be loaded; has no names
    registered: list[Entry] = field(default_factory=list)

    def get(self, kind: str, name: str) -> Any:
        """The object of a name, e.g. `get("workflows", "inventory")`, imported if lazy. MarlError as `entry`."""
        entry = self.entry(kind, name)
        return resolve(entry) if isinstance(entry.target, str) else entry.target

    def entry(self, kind: str, name: str) -> Entry:
        """The entry of a name, or "distribution:name", without importing it. MarlError if unknown or ambiguous."""
        entries = self.find(kind, name)
        if not entries:
            raise self.unknown(kind, name)
        if len(entries) > 1:
            owners = " and by ".join(str(entry.source) for entry in entries)
            choices = " or ".join(f"'{entry.source.distribution}:{entry.name}'" for entry in entries)
            raise MarlError(f"{KINDS[kind]} '{name}' is registered by {owners}: write {choices}")
        return entries[0]

    def find(self, kind: str, name: str) -> list[Entry]:
        """The entries of a name, or "distribution:name": at most one per distribution."""
        distribution, colon, plain = name.rpartition(":")
        entries = [entry for entry in self.entries(kind) if entry.name == plain]
        return [entry for entry in entries if not colon or entry.source.distribution == distribution]

    def names(self, kind: str) -> list[str]:
        """The registered names of a kind, sorted."""
        return sorted({entry.name for entry in self.entries(kind)})

    def entries(self, kind: str) -> list[Entry]:
        """The entries of a kind, sorted by name."""
        return sorted((entry for entry in self.registered if entry.kind == kind), key=lambda entry: entry.name)

    def fingerprint(self) -> tuple[str, ...]:
        """Loaded plugins as "distribution==version:plugin", sorted: equal in every process of a run."""
        return tuple(sorted(f"{source.distribution}=={source.version}:{source.plugin}" for source in self.loaded))

    def content(self, source: Source) -> str:
        """`content_of` a plugin, with the packages of the parts that it registers, which may be others."""
        targets = {entry.shown for entry in self.registered if entry.source == source and ":" in entry.shown}
        return content_of(source, tuple(sorted({top_of(target) for target in targets})))

    def describe(self, content: bool = False) -> list[dict[str, Any]]:
        """One JSON record per plugin; `content` adds the content hash."""
        return [
            {
                **{name: getattr(source, name) for name in ("plugin", "distribution", "version", "target")},
                **({"content": self.content(source) if source in self.loaded else ""} if content else {}),
                "error": self.broken.get(source, ""),
                "hooks": list(self.loaded.get(source, ())),
                "names": {kind: mine for kind in KINDS if (mine := self._names_of(source, kind))},
            }
            for source in (*self.loaded, *self.broken)
        ]

    def _names_of(self, source: Source, kind: str) -> dict[str, str]:
        return {entry.name: entry.shown for entry in self.entries(kind) if entry.source == source}

    def unknown(self, kind: str, name: str, more: Iterable[str] = ()) -> MarlError:
        """The error for a name that is neither registered nor one of `more`: the nearest, or what to install."""
        extras = missing_extras()
        if extra := max((extra for extra in extras if f"{name}-".startswith(f"{extra}-")), key=len, default=""):
            return MarlError(f"unknown {KINDS[kind]} '{name}': pip install 'marl-verl[{extra}]' may register it")
        reasons = [f"a plugin that may register it cannot be loaded: {why}" for why in self.broken.values()]
        if extras:
            reasons.append(f"not installed: {', '.join(sorted(extras))} (pip install 'marl-verl[all]')")
        return MarlError("; ".join([str(unknown(KINDS[kind], name, [*more, *self.names(kind)])), *reasons]))


def resolve(entry: Entry) -> Any:
    """Import a lazy target, or a command's module. MarlError naming target, distribution and cause if that fails."""
    label = f"{KINDS[entry.kind]} '{entry.name}' of {entry.source}"
    with user_error(f"{label}: cannot import '{entry.target}'", Exception):  # a plugin's module may raise anything
        return pkgutil.resolve_name(str(entry.target))


@functools.cache
def content_of(source: Source, more: tuple[str, ...] = ()) -> str:
    """The content hash of a plugin, which detects changed code under an unchanged version.

    sha256 over the Python files of its top-level package or module and of `more` of them, sorted by path; "" without
    files.
    """
    if source.content:
        return source.content
    files: dict[str, Path] = {}
    for top in sorted({top_of(source.target), *more} - sys.stdlib_module_names):
        spec = importlib.util.find_spec(top) if top.isidentifier() else None
        folders = [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]
        inside = {path.relative_to(folder).as_posix(): path for folder in folders for path in folder.rglob("*.py")}
        if spec is not None and not folders and spec.origin is not None:
            inside = {Path(spec.origin).name: Path(spec.origin)}
        files |= {f"{top}/{place}": path for place, path in inside.items()}
    digest = hashlib.sha256()
    for place, path in sorted(files.items()):
        for content in (place.encode(), path.read_bytes()):
            digest.update(len(content).to_bytes(8, "big") + content)
    return digest.hexdigest() if files else ""


def top_of(target: str) -> str:
    """The top-level package or module of "package.module:attribute"."""
    return target.partition(":")[0].partition(".")[0]
