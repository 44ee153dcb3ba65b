"""Discovery: which plugins a process has, loaded once.

`load()` takes the built-in parts, every entry point of group `marl_verl`, and the plugin files in use (`files.py`).
The environment variable MARL_VERL_PLUGINS limits the entry points: "" loads none, a comma list those that it names.
Discovery has to run in every process that uses a part (driver, rollout workers): Ray workers do not inherit what the
driver registered. The driver compares `fingerprint()` with theirs (`check_same`).

A plugin that cannot be loaded is broken: a warning, and an error with the cause where a run needs a name that no other
plugin has.
"""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import os
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pluggy
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from marl_verl.errors import MarlError, MarlWarning, nearest
from marl_verl.plugins import builtins, files, hookspecs
from marl_verl.plugins.hookspecs import PROJECT
from marl_verl.plugins.lookup import Plugins, cause
from marl_verl.plugins.registry import Registry, Source
from marl_verl.version import __version__

__all__ = ["assemble", "discover", "load"]

GROUP = "marl_verl"
VARIABLE = "MARL_VERL_PLUGINS"
HOOKS = frozenset(name for name in vars(hookspecs) if hasattr(getattr(hookspecs, name), f"{PROJECT}_spec"))


@functools.cache
def load() -> Plugins:
    """This process's plugins: `discover` with MARL_VERL_PLUGINS, done once, with a warning for each broken plugin."""
    found = discover(os.environ.get(VARIABLE))
    for why in found.broken.values():
        warnings.warn(why, MarlWarning, stacklevel=2)
    return found


def discover(only: str | None = None) -> Plugins:
    """Find and load plugins anew.

    A plugin is broken if it cannot be imported, is for another version of marl-verl, has an unknown hook or none, or
    raises in `marl_register`: see `Plugins.broken`.

    Args:
        only: None loads everything installed, "" the built-in parts, "a,b" these entry points.

    Raises:
        MarlError: an entry point in `only` that is not installed (nearest offered), or a plugin file that is broken.
    """
    installed, disabled = _candidates(only)
    given = files.candidates()
    return _load_all([*installed, *given], disabled, required={source for source, _ in given})


def use_files(given: Sequence[files.PluginFile]) -> None:
    """Load these plugin files, and no others, in this process and in those that it starts. MarlError as `activate`."""
    if files.activate(given):
        load.cache_clear()


def assemble(plugins: Mapping[str, object], only: str | None = "") -> Plugins:
    """These plugin objects, by name, without any installation: for tests and notebooks.

    Args:
        only: the installed ones beside them, as in `discover`; by default the built-in parts alone.

    Raises:
        MarlError: one of `plugins` is broken, or as `discover`.
    """
    given = [(Source(n, "in-memory", "0", repr(p)), functools.partial(_given, p)) for n, p in plugins.items()]
    installed, disabled = _candidates(only)
    return _load_all([*installed, *given], disabled, required={source for source, _ in given})


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
                f"{source} is made for marl-verl {wanted.specifier}, and this is {__version__}: install a "
                f"version of {source.distribution} for it, or leave it out with {VARIABLE}"
            )
    return point.load()


def _fits(wanted: Requirement) -> bool:
    applies = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
    return not applies or wanted.specifier.contains(__version__, prereleases=True)


def check_same(mine: Sequence[str], theirs: Sequence[str], where: str) -> None:
    """Raise MarlError unless another process (`where`: "rollout worker 3") has the plugins that this one has."""
    missing, extra = sorted(set(mine) - set(theirs)), sorted(set(theirs) - set(mine))
    said = [f"only the driver has {', '.join(missing)}"] if missing else []
    said += [f"only {where} has {', '.join(extra)}"] if extra else []
    if said:
        same = f"install the same plugins on every machine, and set {VARIABLE} the same everywhere"
        raise MarlError(f"the plugins of {where} are not the driver's: {', '.join(said)}: {same}")


def _builtin() -> Source:
    return Source("builtin", "marl-verl", __version__, builtins.__name__)


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


def _load_all(
    candidates: Candidates, disabled: Sequence[Source], required: Collection[Source] = frozenset()
) -> Plugins:
    """Load candidates in their order. MarlError for a broken one that is built in or `required`."""
    manager = _manager()
    plugins = Plugins(manager.hook, disabled=tuple(disabled))
    for source, fetch in candidates:
        registry = Registry(source)
        try:
            plugin = _import(source, fetch)
            hooks = _run(plugin, registry)
            _register(manager, plugin, source)
        except MarlError as error:
            if source == _builtin() or source in required:
                raise
            plugins.broken[source] = str(error)
            continue
        plugins.add(registry)
        plugins.loaded[source] = hooks
    return plugins


def _run(plugin: object, registry: Registry) -> tuple[str, ...]:
    """Run a plugin's `marl_register`; the names of the hooks that it implements. MarlError where it is broken."""
    source = registry.source
    _check_hook_names(plugin, source)
    alone = _manager()  # with this plugin only, so that what is registered is its own
    _register(alone, plugin, source)
    hooks = tuple(sorted(caller.name for caller in alone.get_hookcallers(plugin) or []))
    if not hooks:
        raise MarlError(f"{source} implements no hook; there are {', '.join(sorted(HOOKS))}")
    with _foreign(f"{source} failed in marl_register"):
        alone.hook.marl_register(registry=registry)
    return hooks


def _manager() -> pluggy.PluginManager:
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    return manager


def _import(source: Source, fetch: Callable[[], object]) -> object:
    with _foreign(f"{source} cannot be loaded from '{source.target}'"):
        plugin = fetch()
        return plugin() if inspect.isclass(plugin) else plugin


@contextmanager
def _foreign(what: str) -> Iterator[None]:
    """Raise whatever the code of a plugin raises as MarlError, which begins with `what` and keeps the cause."""
    try:
        yield
    except MarlError:
        raise
    except (Exception, SystemExit) as error:
        raise MarlError(f"{what}: {cause(error)}") from error


def _check_hook_names(plugin: object, source: Source) -> None:
    """MarlError for a misspelt or unmarked hook, which pluggy ignores."""
    for name in dir(plugin):
        if not name.startswith("marl_") or not inspect.isroutine(getattr(plugin, name)):
            continue
        if name not in HOOKS:
            raise MarlError(f"{source} has the unknown hook '{name}': {nearest(name, HOOKS)}")
        if not hasattr(getattr(plugin, name), f"{PROJECT}_impl"):
            raise MarlError(f"{source} has '{name}' without '@hookimpl' above it: it would never be called")


def _register(manager: pluggy.PluginManager, plugin: object, source: Source) -> None:
    try:
        manager.register(plugin, name=f"{source.distribution}:{source.plugin}")
        manager.check_pending()
    except (pluggy.PluginValidationError, ValueError) as error:
        raise MarlError(f"{source} is no valid plugin: {cause(error)}") from error
