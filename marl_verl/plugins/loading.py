"""Plugin discovery: find and load the plugins of this process, once.

`load()` loads the built-in parts, every entry point of group `marl_verl` that the environment variable
MARL_VERL_PLUGINS allows (unset: all, "": none, or a comma-separated list of names), and the plugin files in use
(`one_file.py`). Ray workers run discovery themselves; `check_same` compares the result with the driver's.
"""

import functools
import importlib.metadata
import inspect
import os
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pluggy
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from marl_verl.errors import MarlError, MarlWarning, nearest
from marl_verl.plugins import builtins, one_file, registry
from marl_verl.plugins.lookup import Plugins, cause
from marl_verl.plugins.registry import PROJECT, Registry, Source
from marl_verl.version import __version__

GROUP = "marl_verl"
VARIABLE = "MARL_VERL_PLUGINS"
HOOKS = frozenset(name for name, value in vars(registry).items() if hasattr(value, f"{PROJECT}_spec"))
BUILTIN = Source("builtin", "marl-verl", __version__, builtins.__name__)

Candidates = list[tuple[Source, Callable[[], object]]]
"""Each plugin's source, and a function that imports it."""


@functools.cache
def load() -> Plugins:
    """Return this process's plugins: `discover` with MARL_VERL_PLUGINS, once, with a warning per broken plugin."""
    found = discover(os.environ.get(VARIABLE))
    for why in found.broken.values():
        warnings.warn(why, MarlWarning, stacklevel=2)
    return found


def discover(only: str | None = None, strict: bool = True) -> Plugins:
    """Find and load plugins; those that cannot be imported or registered are in `Plugins.broken`.

    Args:
        only: None loads everything installed, "" the built-in parts, "a,b" these entry points.
        strict: raise the following errors; otherwise they are in `Plugins.broken`, too.

    Raises:
        MarlError: an entry point in `only` that is not installed (with the nearest name), or a broken plugin file.
    """
    given = one_file.files_in_use()
    return _load_all(only, [(file.source, functools.partial(one_file.load_file, file)) for file in given], strict)


def use_files(given: Sequence[one_file.PluginFile]) -> None:
    """Load only these plugin files in this process and its children. MarlError as `activate`."""
    if one_file.activate(given):
        load.cache_clear()


def assemble(plugins: Mapping[str, object], only: str | None = "") -> Plugins:
    """Load these plugin objects (name -> object) without installation, for tests and notebooks.

    `only` selects the installed plugins to load besides, as in `discover`. MarlError for a broken one of `plugins`.
    """
    given = [(Source(name, "in-memory", "0", repr(each)), each) for name, each in plugins.items()]
    return _load_all(only, [(source, functools.partial(_given, each)) for source, each in given], strict=True)


def _given(plugin: object) -> object:
    return plugin


def installed() -> tuple[list[importlib.metadata.EntryPoint], dict[Source, str]]:
    """(entry points of the group, distributions whose entry points cannot be read -> why)."""
    try:
        return list(importlib.metadata.entry_points(group=GROUP)), {}
    except (OSError, TypeError, ValueError):  # one malformed file hides the entry points of all distributions
        points: dict[str, list[importlib.metadata.EntryPoint]] = {}
        broken: dict[Source, str] = {}
    for dist in importlib.metadata.distributions():
        name, version = dist.metadata["Name"] or "unknown", dist.metadata["Version"] or "unknown"
        try:
            points.setdefault(canonicalize_name(name), list(dist.entry_points.select(group=GROUP)))
        except (OSError, TypeError, ValueError) as error:
            why = f"the entry points of {name} {version} cannot be read: {cause(error)}. Install it again."
            broken[Source(name, name, version, "entry_points.txt")] = why
    return [point for mine in points.values() for point in mine], broken


def _candidates(only: str | None) -> tuple[Candidates, tuple[Source, ...], dict[Source, str]]:
    """(plugins to load, the built-in parts first; plugins that MARL_VERL_PLUGINS excludes; broken distributions)."""
    points, broken = installed()
    points.sort(key=lambda point: (_dist(point)[0], point.name))
    wanted = _wanted(only, {point.name for point in points})
    sources = [(point, Source(point.name, *_dist(point), point.value)) for point in points]
    found = [(source, functools.partial(_load_point, point, source)) for point, source in sources]
    return (
        [(BUILTIN, lambda: builtins), *(each for each in found if each[0].plugin in wanted)],
        tuple(source for _, source in sources if source.plugin not in wanted),
        broken if only is None else {source: why for source, why in broken.items() if source.plugin in wanted},
    )


def _wanted(only: str | None, there: set[str]) -> set[str]:
    """The names of the plugins to load."""
    return there if only is None else {name.strip() for name in only.split(",")} - {""}


def _dist(point: importlib.metadata.EntryPoint) -> tuple[str, str]:
    """Name and version of an entry point's distribution; "unknown" where its metadata lack them."""
    if point.dist is None:
        return "unknown", "unknown"
    return point.dist.metadata["Name"] or "unknown", point.dist.metadata["Version"] or "unknown"


def _load_point(point: importlib.metadata.EntryPoint, source: Source) -> object:
    """Import the plugin of an entry point. MarlError where its distribution requires another version of marl-verl."""
    for line in (point.dist.requires if point.dist else None) or ():
        wanted = Requirement(line)
        applies = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
        fits = wanted.specifier.contains(__version__, prereleases=True)
        if canonicalize_name(wanted.name) == "marl-verl" and applies and not fits:
            remedy = f"install a matching version of {source.distribution}, or exclude the plugin with {VARIABLE}"
            raise MarlError(f"{source} requires marl-verl {wanted.specifier}, but this is {__version__}: {remedy}")
    return point.load()


def check_same(mine: Sequence[str], theirs: Sequence[str], where: str) -> None:
    """Raise MarlError unless another process (`where`: "rollout worker 3") has the same plugins as this one."""
    missing, extra = sorted(set(mine) - set(theirs)), sorted(set(theirs) - set(mine))
    message = [f"only the driver has {', '.join(missing)}"] if missing else []
    message += [f"only {where} has {', '.join(extra)}"] if extra else []
    if message:
        same = f"Install the same plugins on every machine, and set the same {VARIABLE} everywhere."
        raise MarlError(f"the plugins of {where} differ from the driver's: {', '.join(message)}. {same}")


def _load_all(only: str | None, given: Candidates, strict: bool) -> Plugins:
    """Load the installed plugins, then those in `given`. MarlError where a built-in one, or if `strict` a given one or
    one that is not installed, is broken."""
    candidates, disabled, broken = _candidates(only)
    required = {BUILTIN, *(source for source, _ in given if strict)}
    manager = _manager()
    plugins = Plugins(manager.hook, disabled=disabled, broken=broken)
    there = {source.plugin for source in (*(source for source, _ in candidates), *disabled, *broken)} - {BUILTIN.plugin}
    for name in sorted(_wanted(only, there) - there):
        why = f"{VARIABLE} names '{name}', but no installed distribution has this plugin: {nearest(name, there)}"
        if strict:
            raise MarlError(why)
        broken[Source(name, "unknown", "unknown", VARIABLE)] = why
    for source, fetch in [*candidates, *given]:
        parts = Registry(source)
        try:
            plugin, hooks = _run(fetch, parts)
            _register(manager, plugin, source)
        except MarlError as error:
            if source in required:
                raise
            plugins.broken[source] = str(error)
            continue
        plugins.add(parts)
        plugins.loaded[source] = hooks
    return plugins


def _run(fetch: Callable[[], object], parts: Registry) -> tuple[object, tuple[str, ...]]:
    """Import a plugin and run its `marl_register`: (plugin, names of its hooks). MarlError where it is broken."""
    source = parts.source
    with _foreign(f"{source} cannot be loaded from '{source.target}'"):
        plugin = fetch()
        plugin = plugin() if inspect.isclass(plugin) else plugin
    with _foreign(f"{source} is not a valid plugin"):
        _check_hooks(plugin, source)
    alone = _manager()  # a manager with this plugin only, so that all registered parts are its own
    _register(alone, plugin, source)
    hooks = tuple(sorted(caller.name for caller in alone.get_hookcallers(plugin) or []))
    if not hooks and not source.distribution.startswith(one_file.REWARDS):
        raise MarlError(f"{source} implements no hook; valid: {', '.join(sorted(HOOKS))}")
    with _foreign(f"{source} failed in marl_register", located=True):
        alone.hook.marl_register(registry=parts)
    return plugin, hooks


def _manager() -> pluggy.PluginManager:
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(registry)
    return manager


@contextmanager
def _foreign(what: str, located: bool = False) -> Iterator[None]:
    """Convert any exception of plugin code to a MarlError that begins with `what`, keeps the cause and, if `located`,
    ends with the line that raised it."""
    try:
        yield
    except MarlError:
        raise
    except (Exception, SystemExit) as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        place = f" ({at.filename}, line {at.lineno})" if located else ""
        raise MarlError(f"{what}: {cause(error)}{place}") from error


def _check_hooks(plugin: object, source: Source) -> None:
    """MarlError for a hook that pluggy would ignore (misspelt, without `@hookimpl`), or with unknown arguments."""
    for name in dir(plugin):
        found = getattr(plugin, name) if name.startswith("marl_") else None
        if not inspect.isroutine(found):
            continue
        if name not in HOOKS:
            raise MarlError(f"{source} has the unknown hook '{name}': {nearest(name, HOOKS)}")
        if not hasattr(found, f"{PROJECT}_impl"):
            raise MarlError(f"{source} has '{name}' without the decorator '@hookimpl': the hook would never be called")
        whole: Any = getattr(found, "__func__", found)  # a method with its `self`
        valid = list(inspect.signature(getattr(registry, name)).parameters)
        right = f"def {name}({', '.join(['self'] * (whole is not found) + valid)})"
        if whole is not found and next(iter(inspect.signature(whole).parameters), "") in valid:
            raise MarlError(f"{source}: method '{name}' has no argument 'self': write `{right}`")
        for argument in inspect.signature(found).parameters.values():
            if argument.name not in valid and argument.default is argument.empty:
                raise MarlError(f"{source}: hook '{name}' is called without '{argument.name}': write `{right}`")
        if inspect.iscoroutinefunction(found):
            raise MarlError(f"{source}: hook '{name}' is never awaited: write `{right}`, without `async`")


def _register(manager: pluggy.PluginManager, plugin: object, source: Source) -> None:
    with _foreign(f"{source} is not a valid plugin"):  # pluggy reads all attributes, and a property may raise
        manager.register(plugin, name=f"{source.distribution}:{source.plugin}")
        manager.check_pending()
