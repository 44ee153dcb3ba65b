"""Plugin discovery, once per process, and `Plugins`: the parts by kind and name, the source of each, broken plugins.

`load()` loads the built-in parts, every entry point of group `marl_verl`, and the plugin files in use (`one_file.py`).
Ray workers run discovery themselves; `check_same` compares the result with the driver's.
"""

import functools
import hashlib
import importlib.metadata
import importlib.util
import inspect
import pkgutil
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pluggy
from packaging.requirements import Requirement

from marl_verl.errors import MarlError, MarlWarning, check_known, shown, unknown, user_error
from marl_verl.extensions import missing_extras
from marl_verl.plugins import builtins, one_file, registry
from marl_verl.plugins.registry import CLASSES, KINDS, PROJECT, TARGETS, Entry, Registry, Source
from marl_verl.version import __version__

GROUP = "marl_verl"
HOOKS = frozenset(name for name, value in vars(registry).items() if hasattr(value, f"{PROJECT}_spec"))
BUILTIN = Source("builtin", "marl-verl", __version__, builtins.__name__)
Imports = Mapping[Source, Callable[[], object]]  # plugin -> the function that imports it


@dataclass
class Plugins:
    """The plugins of this process; `plugins.hook.marl_step_finished(step=1, metrics={})` calls every observer."""

    hook: pluggy.HookRelay
    loaded: dict[Source, tuple[str, ...]] = field(default_factory=dict)  # -> hook names; the built-in parts first
    broken: dict[Source, str] = field(default_factory=dict)  # -> why it could not be loaded; has no names
    registered: list[Entry] = field(default_factory=list)

    def get(self, kind: str, name: str, more: Iterable[str] = ()) -> Any:
        """The object of a name, as in `get("workflows", "inventory")`. MarlError as `entry`, and for another kind."""
        entry = self.entry(kind, name, more)
        target, label = entry.target, f"{KINDS[kind]} '{entry.name}' of {entry.source}"
        if isinstance(target, str):
            with user_error(f"{label}: cannot import '{target}'", Exception):  # a plugin's module may raise anything
                target = pkgutil.resolve_name(target)
        base: type = pkgutil.resolve_name(TARGETS.get(kind, "builtins:object"))
        is_class = kind in CLASSES
        if not (inspect.isclass(target) and issubclass(target, base) if is_class else isinstance(target, base)):
            wanted = f"{'a subclass' if is_class else 'an instance'} of {base.__name__}"
            raise MarlError(f"{label} must be {wanted}, not {shown(target, 200)}")
        return target

    def entry(self, kind: str, name: str, more: Iterable[str] = ()) -> Entry:
        """The entry of a name, or "distribution:name", without importing it. MarlError if unknown (the names `more` are
        valid, too) or ambiguous."""
        entries = self.find(kind, name)
        if not entries:
            raise self.unknown(kind, name, more)
        if len(entries) > 1:
            owners = " and by ".join(str(entry.source) for entry in entries)
            choices = " or ".join(f"'{entry.source.distribution}:{entry.name}'" for entry in entries)
            raise MarlError(f"{KINDS[kind]} '{name}' is registered by {owners}: write {choices}")
        return entries[0]

    def find(self, kind: str, name: str) -> list[Entry]:
        """The entries of a name, or "distribution:name": at most one per distribution."""
        distribution, _, plain = name.rpartition(":")
        entries = [entry for entry in self.entries(kind) if entry.name == plain]
        return [entry for entry in entries if distribution in ("", entry.source.distribution)]

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
        records = []
        for source in (*self.loaded, *self.broken):
            record = {key: getattr(source, key) for key in ("plugin", "distribution", "version", "target")}
            if content:
                record["content"] = self.content(source) if source in self.loaded else ""
            parts = {kind: [entry for entry in self.entries(kind) if entry.source == source] for kind in KINDS}
            names = {kind: {entry.name: entry.shown for entry in entries} for kind, entries in parts.items() if entries}
            hooks = list(self.loaded.get(source, ()))
            records.append({**record, "error": self.broken.get(source, ""), "hooks": hooks, "names": names})
        return records

    def unknown(self, kind: str, name: str, more: Iterable[str] = ()) -> MarlError:
        """The error for a name that is neither registered nor one of `more`: the nearest, or what to install."""
        extras = (extra for extra in missing_extras() if f"{name}-".startswith(f"{extra}-"))
        if extra := max(extras, key=len, default=""):
            return MarlError(f"unknown {KINDS[kind]} '{name}': pip install 'marl-verl[{extra}]' may register it")
        return self.explained(unknown(KINDS[kind], name, [*more, *self.names(kind)]), kind != "commands")

    def explained(self, error: MarlError, files: bool = True) -> MarlError:
        """The error for an unknown name, with the plugins that may have it: broken, not installed, or a user's own (if
        `files`, also plugin files)."""
        reasons = [f"a plugin that may register it cannot be loaded: {why}" for why in self.broken.values()]
        if "did you mean" not in str(error):
            own = f"{'--plugin FILE, or ' * files}`pip install -e FOLDER` of its package"
            reasons.append(f"one of your own needs {own}")
        if extras := sorted(missing_extras()):
            reasons.append(f"not installed: {', '.join(extras)} (pip install 'marl-verl[all]')")
        return MarlError("; ".join([str(error), *reasons]))


@functools.cache
def load() -> Plugins:
    """Return this process's plugins: `discover`, once, with a warning per broken plugin."""
    plugins = discover()
    for why in plugins.broken.values():
        warnings.warn(why, MarlWarning, stacklevel=2)
    return plugins


def discover(only: str | None = None, strict: bool = True) -> Plugins:
    """Find and load plugins; those that cannot be imported or registered are in `Plugins.broken`.

    Args:
        only: None loads everything installed, "" the built-in parts, "a,b" these entry points besides.
        strict: raise a MarlError for a broken plugin file; otherwise it is in `Plugins.broken`, too.
    """
    files = {file.source: functools.partial(one_file.load_file, file) for file in one_file.files_in_use()}
    return _load_all(only, files, strict)


def use_files(files: Sequence[one_file.PluginFile]) -> None:
    """Load only these plugin files in this process and its children. MarlError as `activate`."""
    if one_file.activate(files):
        load.cache_clear()


def assemble(plugins: Mapping[str, object], only: str | None = "") -> Plugins:
    """Load these plugin objects (name -> object) without installation, for tests and notebooks.

    `only` selects the installed plugins to load besides, as in `discover`. MarlError for a broken one of `plugins`.
    """
    imports: dict[Source, Callable[[], object]] = {
        Source(name, "in-memory", "0", repr(plugin)): functools.partial(plugins.__getitem__, name)
        for name, plugin in plugins.items()
    }
    return _load_all(only, imports, strict=True)


def check_same(mine: Sequence[str], theirs: Sequence[str], where: str) -> None:
    """Raise MarlError unless another process (`where`: "rollout worker 3") has the same plugins as this one."""
    if different := ", ".join(sorted(set(mine) ^ set(theirs))):
        same = "install the same plugins on every machine"
        raise MarlError(f"only one of the driver and {where} has the plugins {different}: {same}")


def _load_all(only: str | None, more: Imports, strict: bool) -> Plugins:
    """Load built-in parts, plugins and `more`. MarlError: a built-in one or, if `strict`, one of `more` is broken."""
    installed: dict[Source, Callable[[], object]] = {}
    for point in importlib.metadata.entry_points(group=GROUP):
        if only is None or point.name in only.split(","):
            metadata: Any = point.dist.metadata if point.dist else {"Name": "unknown", "Version": "unknown"}
            requires = metadata.get_all("Requires-Dist", ()) if point.dist else ()  # each access to it parses it again
            source = Source(point.name, metadata["Name"], metadata["Version"], point.value)
            installed[source] = functools.partial(_load_point, point, requires)
    ordered = sorted(installed, key=lambda source: (source.distribution, source.plugin))
    candidates: Imports = {BUILTIN: lambda: builtins, **{source: installed[source] for source in ordered}, **more}
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(registry)
    plugins = Plugins(manager.hook)
    for source, import_plugin in candidates.items():
        parts = Registry(source)
        try:
            plugins.loaded[source] = _register(manager, import_plugin, parts)
            plugins.registered += parts.entries.values()
        except MarlError as error:
            if source == BUILTIN or (strict and source in more):
                raise
            plugins.broken[source] = str(error)
    return plugins


def _load_point(point: importlib.metadata.EntryPoint, requires: Iterable[str]) -> object:
    """Import the plugin of an entry point. MarlError where its distribution requires another version of marl-verl."""
    for line in requires:
        if re.match(r"marl[-_.]verl\b(?![-_.])", line, re.IGNORECASE) and (other := _other_version(line)):
            raise MarlError(f"it requires marl-verl {other}, but this is {__version__}")
    return point.load()


@functools.cache
def _other_version(requirement: str) -> str:
    """The versions of a requirement, where they apply and this one is not among them; else ""."""
    parsed = Requirement(requirement)
    applies = parsed.marker is None or parsed.marker.evaluate({"extra": ""})
    return str(parsed.specifier) if applies and not parsed.specifier.contains(__version__, prereleases=True) else ""


def _register(manager: pluggy.PluginManager, import_plugin: Callable[[], object], parts: Registry) -> tuple[str, ...]:
    """Import a plugin, run its `marl_register` and add its hooks. Returns their names. MarlError where it is broken."""
    source = parts.source
    # plugin code may raise anything; a package may have no hook: runs store its version
    with user_error(f"{source} cannot be loaded from '{source.target}'", Exception, SystemExit, line=True):
        plugin: Any = import_plugin()
        plugin = plugin() if inspect.isclass(plugin) else plugin
        hooks = sorted(name for name in dir(plugin) if name.startswith("marl_") and callable(getattr(plugin, name)))
        for name in hooks:  # pluggy would ignore it
            check_known("hook", name, HOOKS)
            if not hasattr(getattr(plugin, name), f"{PROJECT}_impl"):
                raise MarlError(f"'{name}' has no decorator '@hookimpl'")
        if not hooks and not hasattr(plugin, "__path__") and not source.distribution.startswith(one_file.REWARDS):
            raise MarlError(f"it implements no hook; valid: {', '.join(sorted(HOOKS))}")
        if "marl_register" in hooks:
            plugin.marl_register(parts)
        manager.register(plugin, name=f"{source.distribution}:{source.plugin}")
    return tuple(hooks)


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
        inside = [(folder, path) for folder in folders for path in folder.rglob("*.py")]
        files |= {f"{top}/{path.relative_to(folder).as_posix()}": path for folder, path in inside}
        if spec is not None and not folders and spec.origin is not None:
            files[f"{top}/{Path(spec.origin).name}"] = Path(spec.origin)
    digest = hashlib.sha256()
    for place, path in sorted(files.items()):
        for content in (place.encode(), path.read_bytes()):
            digest.update(len(content).to_bytes(8, "big") + content)
    return digest.hexdigest() if files else ""


def top_of(target: str) -> str:
    """The top-level package or module of "package.module:attribute"."""
    return target.partition(":")[0].partition(".")[0]
