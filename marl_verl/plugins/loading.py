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


def discover(only: str | None = None) -> Plugins:
    """Find and load plugins; those that cannot be imported or registered are in `Plugins.broken`.

    Args:
        only: None loads everything installed, "" the built-in parts, "a,b" these entry points.

    Raises:
        MarlError: an entry point in `only` that is not installed (with the nearest name), or a broken plugin file.
    """
    given = one_file.files_in_use()
    return _load_all(only, [(file.source, functools.partial(one_file.load_file, file)) for file in given])


def use_files(given: Sequence[one_file.PluginFile]) -> None:
    """Load only these plugin files in this process and its children. MarlError as `activate`."""
    if one_file.activate(given):
        load.cache_clear()


def assemble(plugins: Mapping[str, object], only: str | None = "") -> Plugins:
    """Load these plugin objects (name -> object) without installation, for tests and notebooks.

    `only` selects the installed plugins to load besides, as in `discover`. MarlError for a broken one of `plugins`.
    """
    given = [(Source(name, "in-memory", "0", repr(each)), each) for name, each in plugins.items()]
    return _load_all(only, [(source, functools.partial(_given, each)) for source, each in given])


def _given(plugin: object) -> object:
    return plugin


def _candidates(only: str | None) -> tuple[Candidates, tuple[Source, ...]]:
    """(plugins to load, the built-in parts first; plugins that MARL_VERL_PLUGINS excludes)."""
    points = sorted(importlib.metadata.entry_points(group=GROUP), key=lambda point: (_dist(point)[0], point.name))
    installed = {point.name for point in points}
    wanted = installed if only is None else {name.strip() for name in only.split(",")} - {""}
    for name in sorted(wanted - installed):
        hint = nearest(name, installed)
        raise MarlError(f"{VARIABLE} names '{name}', but no installed distribution has this plugin: {hint}")
    sources = [(point, Source(point.name, *_dist(point), point.value)) for point in points]
    found = [(source, functools.partial(_load_point, point, source)) for point, source in sources]
    return (
        [(BUILTIN, lambda: builtins), *(each for each in found if each[0].plugin in wanted)],
        tuple(source for _, source in sources if source.plugin not in wanted),
    )


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


def _load_all(only: str | None, given: Candidates) -> Plugins:
    """Load the installed plugins, then those in `given`. MarlError where a built-in or given one is broken."""
    installed, disabled = _candidates(only)
    required = {BUILTIN, *(source for source, _ in given)}
    manager = _manager()
    plugins = Plugins(manager.hook, disabled=disabled)
    for source, fetch in [*installed, *given]:
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
    _check_hook_names(plugin, source)
    alone = _manager()  # a manager with this plugin only, so that all registered parts are its own
    _register(alone, plugin, source)
    hooks = tuple(sorted(caller.name for caller in alone.get_hookcallers(plugin) or []))
    if not hooks:
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


def _check_hook_names(plugin: object, source: Source) -> None:
    """MarlError for a misspelt hook, or one without `@hookimpl`: pluggy ignores both."""
    for name in dir(plugin):
        if not name.startswith("marl_") or not inspect.isroutine(getattr(plugin, name)):
            continue
        if name not in HOOKS:
            raise MarlError(f"{source} has the unknown hook '{name}': {nearest(name, HOOKS)}")
        if not hasattr(getattr(plugin, name), f"{PROJECT}_impl"):
            raise MarlError(f"{source} has '{name}' without the decorator '@hookimpl': the hook would never be called")


def _register(manager: pluggy.PluginManager, plugin: object, source: Source) -> None:
    try:
        manager.register(plugin, name=f"{source.distribution}:{source.plugin}")
        manager.check_pending()
    except (pluggy.PluginValidationError, ValueError) as error:
        raise MarlError(f"{source} is not a valid plugin: {cause(error)}") from error
