"""Plugin discovery: find and load the plugins of this process, once.

`load()` loads the built-in parts, every entry point of group `marl_verl`, and the plugin files in use (`one_file.py`).
Ray workers run discovery themselves; `check_same` compares the result with the driver's.
"""

import functools
import importlib.metadata
import inspect
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pluggy
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from marl_verl.errors import MarlError, MarlWarning, check_known, format_error
from marl_verl.plugins import builtins, one_file, registry
from marl_verl.plugins.lookup import Plugins
from marl_verl.plugins.registry import PROJECT, Registry, Source
from marl_verl.version import __version__

GROUP = "marl_verl"
HOOKS = frozenset(name for name, value in vars(registry).items() if hasattr(value, f"{PROJECT}_spec"))
BUILTIN = Source("builtin", "marl-verl", __version__, builtins.__name__)
Imports = Mapping[Source, Callable[[], object]]
"""Plugin -> the function that imports it."""


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
    """Load the built-in parts, the installed plugins, and `more`. MarlError where a built-in one, or if `strict` one of
    `more`, is broken."""
    points = {
        _source(point): functools.partial(_load_point, point) for point in importlib.metadata.entry_points(group=GROUP)
    }
    ordered = sorted(points, key=lambda source: (source.distribution, source.plugin))
    installed = {source: points[source] for source in ordered if only is None or source.plugin in only.split(",")}
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(registry)
    plugins = Plugins(manager.hook)
    candidates: Imports = {BUILTIN: lambda: builtins, **installed, **more}
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


def _source(point: importlib.metadata.EntryPoint) -> Source:
    distribution = (point.dist.metadata["Name"], point.dist.version) if point.dist else ("unknown", "unknown")
    return Source(point.name, *distribution, point.value)


def _load_point(point: importlib.metadata.EntryPoint) -> object:
    """Import the plugin of an entry point. MarlError where its distribution requires another version of marl-verl."""
    for requirement in map(Requirement, (point.dist.requires if point.dist else None) or ()):
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        fits = requirement.specifier.contains(__version__, prereleases=True)
        if canonicalize_name(requirement.name) == "marl-verl" and applies and not fits:
            raise MarlError(f"it requires marl-verl {requirement.specifier}, but this is {__version__}")
    return point.load()


def _register(manager: pluggy.PluginManager, import_plugin: Callable[[], object], parts: Registry) -> tuple[str, ...]:
    """Import a plugin, run its `marl_register` and add its hooks. Returns their names. MarlError where it is broken."""
    source = parts.source
    try:
        plugin: Any = import_plugin()
        plugin = plugin() if inspect.isclass(plugin) else plugin
        hooks = sorted(name for name in dir(plugin) if name.startswith("marl_") and callable(getattr(plugin, name)))
        for name in hooks:  # pluggy would ignore it
            check_known("hook", name, HOOKS)
            if not hasattr(getattr(plugin, name), f"{PROJECT}_impl"):
                raise MarlError(f"'{name}' has no decorator '@hookimpl'")
        if not hooks and not source.distribution.startswith(one_file.REWARDS):
            raise MarlError(f"it implements no hook; valid: {', '.join(sorted(HOOKS))}")
        if "marl_register" in hooks:
            plugin.marl_register(parts)
        manager.register(plugin, name=f"{source.distribution}:{source.plugin}")
    except (Exception, SystemExit) as error:  # of plugin code
        at = traceback.extract_tb(error.__traceback__)[-1]
        reason = " ".join(format_error(error).split())
        reason += "" if isinstance(error, MarlError) else f" ({at.filename}, line {at.lineno})"
        raise MarlError(f"{source} cannot be loaded from '{source.target}': {reason}") from error
    return tuple(hooks)
