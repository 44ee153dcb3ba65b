"""Discovery: which plugins a process has, loaded once, with every mistake told at the start.

`load()` takes the built-in parts and every entry point of group `marl_verl`. The environment variable
MARL_VERL_PLUGINS limits that: "" loads the built-in parts only, a comma list loads the entry points it names.
Discovery has to run in every process that uses a part (driver, rollout workers): Ray workers do not inherit what the
driver registered. The driver compares `fingerprint()` with theirs (`check_same`).
"""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pluggy
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import marl_verl
from marl_verl import builtins, hookspecs
from marl_verl.errors import MarlError, nearest
from marl_verl.hookspecs import KINDS, PROJECT, Register
from marl_verl.registry import Entry, Registry, Source, cause

__all__ = ["Plugins", "assemble", "discover", "load"]

GROUP = "marl_verl"
VARIABLE = "MARL_VERL_PLUGINS"
HOOKS = frozenset(name for name in vars(hookspecs) if hasattr(getattr(hookspecs, name), f"{PROJECT}_spec"))


@dataclass
class Plugins:
    """The plugins of this process: names, what stands behind them, and who supplied it.

    Attributes:
        registry: the names.
        hook: pluggy's relay; `plugins.hook.marl_step_finished(step=1, metrics={})` calls every observer.
        loaded: source -> the hooks it implements, in loading order; the built-in parts come first.
        disabled: entry points that MARL_VERL_PLUGINS left out; they were not imported.
    """

    registry: Registry
    hook: pluggy.HookRelay
    loaded: dict[Source, tuple[str, ...]] = field(default_factory=dict)
    disabled: tuple[Source, ...] = ()

    def get(self, kind: str, name: str) -> Any:
        """The object behind a name, e.g. `get("workflows", "inventory")`. MarlError (nearest offered) if unknown."""
        return self.registry.get(kind, name)

    def entry(self, kind: str, name: str) -> Entry:
        """Who supplies a name: what a run stores about each name it used. Imports nothing."""
        return self.registry.entry(kind, name)

    def names(self, kind: str) -> list[str]:
        """The registered names of a kind, sorted."""
        return self.registry.names(kind)

    def entries(self, kind: str) -> list[Entry]:
        """The entries of a kind, sorted by name."""
        return self.registry.entries(kind)

    def fingerprint(self) -> tuple[str, ...]:
        """What has to be the same in every process of a run: "distribution==version:plugin", sorted."""
        return tuple(sorted(f"{source.distribution}=={source.version}:{source.plugin}" for source in self.loaded))

    def describe(self) -> list[dict[str, Any]]:
        """One JSON-able record per plugin, as `marl-verl plugins --json` prints it."""
        found = [(source, True, hooks) for source, hooks in self.loaded.items()]
        found += [(source, False, ()) for source in self.disabled]
        return [
            {
                "plugin": source.plugin,
                "distribution": source.distribution,
                "version": source.version,
                "target": source.target,
                "enabled": enabled,
                "hooks": list(hooks),
                "names": self._names_of(source) if enabled else {},
            }
            for source, enabled, hooks in found
        ]

    def _names_of(self, source: Source) -> dict[str, dict[str, str]]:
        who = (source.distribution, source.version, source.plugin)
        mine = {
            kind: {e.name: e.shown for e in self.entries(kind) if (e.distribution, e.version, e.plugin) == who}
            for kind in KINDS
        }
        return {kind: names for kind, names in mine.items() if names}


@functools.cache
def load() -> Plugins:
    """This process's plugins: `discover` with what the environment says, done once. MarlError as there."""
    return discover(os.environ.get(VARIABLE))


def discover(only: str | None = None) -> Plugins:
    """Find and load plugins anew.

    Args:
        only: None loads everything installed, "" the built-in parts, "a,b" these entry points.

    Raises:
        MarlError: an entry point in `only` that is not installed (nearest offered); a plugin that cannot be imported,
            has no hook or one that does not exist (nearest offered); a name registered twice (both distributions
            named).
    """
    return _load_all(*_candidates(only))


def assemble(plugins: Mapping[str, object], only: str | None = "") -> Plugins:
    """These plugin objects, by name, without any installation: for tests and notebooks.

    Args:
        only: the installed ones beside them, as in `discover`; by default the built-in parts alone.
    """
    given = [(Source(n, "in-memory", "0", repr(p)), functools.partial(_given, p)) for n, p in plugins.items()]
    installed, disabled = _candidates(only)
    return _load_all([*installed, *given], disabled)


Candidates = list[tuple[Source, Callable[[], object]]]


def _candidates(only: str | None) -> tuple[Candidates, list[Source]]:
    """(what is to be loaded, the built-in parts first; what MARL_VERL_PLUGINS leaves out)."""
    points = sorted(importlib.metadata.entry_points(group=GROUP), key=lambda point: (_dist(point)[0], point.name))
    wanted = _wanted(only, {point.name for point in points})
    candidates: Candidates = [(_builtin(), lambda: builtins)]
    disabled = []
    for point in points:
        source = Source(point.name, *_dist(point), point.value)
        if wanted is None or point.name in wanted:
            candidates.append((source, functools.partial(_load_point, point, source)))
        else:
            disabled.append(source)
    return candidates, disabled


def _load_point(point: importlib.metadata.EntryPoint, source: Source) -> object:
    """The plugin behind an entry point. MarlError where its distribution is for another version of marl-verl."""
    for line in (point.dist.requires if point.dist else None) or ():
        wanted = Requirement(line)
        if canonicalize_name(wanted.name) == "marl-verl" and not _fits(wanted):
            raise MarlError(
                f"{source} is made for marl-verl {wanted.specifier}, and this is {marl_verl.__version__}: install a "
                f"version of {source.distribution} for it, or leave it out with {VARIABLE}"
            )
    return point.load()


def _fits(wanted: Requirement) -> bool:
    applies = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
    return not applies or wanted.specifier.contains(marl_verl.__version__, prereleases=True)


def check_same(mine: Sequence[str], theirs: Sequence[str], where: str) -> None:
    """Raise MarlError unless another process (`where`: "rollout worker 3") has the plugins that this one has."""
    missing, extra = sorted(set(mine) - set(theirs)), sorted(set(theirs) - set(mine))
    said = [f"only the driver has {', '.join(missing)}"] if missing else []
    said += [f"only {where} has {', '.join(extra)}"] if extra else []
    if said:
        same = f"install the same plugins on every machine, and set {VARIABLE} the same everywhere"
        raise MarlError(f"the plugins of {where} are not the driver's: {', '.join(said)}: {same}")


def _builtin() -> Source:
    return Source("builtin", "marl-verl", marl_verl.__version__, builtins.__name__)


def _given(plugin: object) -> object:
    return plugin


def _dist(point: importlib.metadata.EntryPoint) -> tuple[str, str]:
    """Name and version of an entry point's distribution; "unknown" where its metadata do not say."""
    if point.dist is None:
        return "unknown", "unknown"
    return point.dist.metadata["Name"] or "unknown", point.dist.metadata["Version"] or "unknown"


def _wanted(only: str | None, installed: Iterable[str]) -> set[str] | None:
    if only is None:
        return None
    names = {name.strip() for name in only.split(",")} - {""}
    for name in sorted(names - set(installed)):
        hint = nearest(name, installed)
        raise MarlError(f"{VARIABLE} names '{name}', a plugin that no installed distribution has: {hint}")
    return names


def _load_all(candidates: Candidates, disabled: Sequence[Source]) -> Plugins:
    manager = _manager()
    left_out = tuple(source.plugin for source in disabled)
    plugins = Plugins(Registry(left_out), manager.hook, disabled=tuple(disabled))
    for source, fetch in candidates:
        plugin = _import(source, fetch)
        _check_hook_names(plugin, source)
        # Alone in a manager of its own first: what it registers is then known to be its own.
        alone = _manager()
        _register(alone, plugin, source)
        callers = alone.get_hookcallers(plugin) or []
        if not callers:
            raise MarlError(f"{source} implements no hook; there are {', '.join(sorted(HOOKS))}")
        for kind in KINDS:
            _run_hook(getattr(alone.hook, f"marl_register_{kind}"), _registrar(plugins.registry, kind, source), source)
        _register(manager, plugin, source)
        plugins.loaded[source] = tuple(sorted(caller.name for caller in callers))
    return plugins


def _manager() -> pluggy.PluginManager:
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    return manager


def _import(source: Source, fetch: Callable[[], object]) -> object:
    try:
        plugin = fetch()
        return plugin() if inspect.isclass(plugin) else plugin
    except MarlError:
        raise
    except Exception as error:  # whatever a foreign module raises is told with its name, and kept as the cause
        raise MarlError(f"{source} cannot be loaded from '{source.target}': {cause(error)}") from error


def _check_hook_names(plugin: object, source: Source) -> None:
    """pluggy passes over a misspelt or unmarked function in silence; here both are errors."""
    for name in dir(plugin):
        if not name.startswith("marl_") or not inspect.isroutine(getattr(plugin, name)):
            continue
        if name not in HOOKS:
            raise MarlError(f"{source} has '{name}', which is no hook: {nearest(name, HOOKS)}")
        if not hasattr(getattr(plugin, name), f"{PROJECT}_impl"):
            raise MarlError(f"{source} has '{name}' without '@hookimpl' above it: it would never be called")


def _register(manager: pluggy.PluginManager, plugin: object, source: Source) -> None:
    try:
        manager.register(plugin, name=f"{source.distribution}:{source.plugin}")
        manager.check_pending()
    except (pluggy.PluginValidationError, ValueError) as error:
        raise MarlError(f"{source} is no valid plugin: {cause(error)}") from error


def _registrar(registry: Registry, kind: str, source: Source) -> Register:
    def register(name: str, target: object) -> None:
        registry.add(kind, name, target, source)

    return register


def _run_hook(hook: pluggy.HookCaller, register: Register, source: Source) -> None:
    try:
        hook(register=register)
    except MarlError:
        raise
    except Exception as error:  # a plugin's own mistake: told with the plugin's name, and kept as the cause
        raise MarlError(f"{source} failed in {hook.name}: {cause(error)}") from error
