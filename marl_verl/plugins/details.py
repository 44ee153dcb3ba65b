"""Details of registered parts for `marl-verl plugins NAME`: origin, docstring, and options with types and defaults."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Iterator
from typing import Any, get_type_hints

from marl_verl.algo.advantage.part import Part, PartField, named
from marl_verl.algo.algorithms import Algorithm
from marl_verl.algo.algorithms.algorithm import LISTS, PARTS
from marl_verl.algo.core_parts import CORE_PARTS
from marl_verl.errors import MarlError, unknown
from marl_verl.options import in_words
from marl_verl.plugins.lookup import Plugins
from marl_verl.plugins.registry import KINDS, Entry

SECTIONS = {"tasks": "marl.task.options", "workflows": "marl.workflow.options", "samplers": "marl.sampler.options"}
WITHOUT = ("rewards", "losses", "metrics", "columns", "scripts")  # kinds of parts without options
Option = tuple[str, str, Any]  # name in a config, type in words, default


def details(known: Plugins, name: str) -> list[dict[str, Any]]:
    """One JSON record per part of that name, or "distribution:name"; none if there is no such part."""
    return [_record(known, entry) for kind in KINDS for entry in known.find(kind, name)]


def unknown_name(known: Plugins, name: str) -> MarlError:
    """The error for a name that is neither that of a part nor of a plugin."""
    parts = {each for kind in KINDS for each in known.names(kind)}
    return unknown("part or plugin", name, parts | {source.plugin for source in (*known.loaded, *known.broken)})


def _record(known: Plugins, entry: Entry) -> dict[str, Any]:
    record: dict[str, Any] = {"kind": KINDS[entry.kind], "name": entry.name}
    record |= {"distribution": entry.distribution, "version": entry.version, "target": entry.shown, "error": ""}
    try:
        target = known.get(entry.kind, f"{entry.distribution}:{entry.name}")
        options = list(_options(known, target, entry.kind))
    except Exception as error:  # noqa: BLE001  code of a plugin, which must not hide the other parts
        return {**record, "error": str(error) if isinstance(error, MarlError) else repr(error)}
    record |= {"doc": _doc(target, entry), "section": SECTIONS.get(entry.kind, "marl.algorithm.options")}
    return {**record, "options": {name: {"type": kind, "default": default} for name, kind, default in options}}


def _doc(target: Any, entry: Entry) -> str:
    """The docstring of a class or function; of an object, that of the module that defines it."""
    if inspect.isclass(target):
        found = vars(target).get("__doc__") or ""
        return "" if found.startswith(f"{target.__name__}(") else inspect.cleandoc(found)  # written by `dataclass`
    if inspect.isroutine(target):
        return inspect.getdoc(target) or ""
    place = entry.target if isinstance(entry.target, str) else entry.source.target
    return inspect.getdoc(sys.modules.get(place.partition(":")[0])) or ""


def _options(known: Plugins, target: Any, kind: str) -> Iterator[Option]:
    if isinstance(target, Algorithm):
        kinds = {"sampler": "samplers", "rewards": "mixes", "credit": "credits", "advantage": "advantages"}
        for name, of in {**kinds, "loss": "losses"}.items():
            value = getattr(target, name)
            yield name, _names(known, of), value if isinstance(value, str) else value.name
            if name in PARTS:
                yield from _fields(known, value, PARTS[name])
        for name in LISTS:
            yield name, "a list of names", list(getattr(target, name))
    elif kind not in WITHOUT and dataclasses.is_dataclass(target):
        yield from _fields(known, target, PARTS["credit"] if kind == "credits" else "")


def _fields(known: Plugins, part: Any, prefix: str) -> Iterator[Option]:
    """The options of a class or an object, and those of its nested parts."""
    cls: Any = part if inspect.isclass(part) else type(part)
    hints = get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        value = _default(field) if inspect.isclass(part) else getattr(part, field.name)
        taken = inspect.getattr_static(cls, field.name, None)
        if not isinstance(taken, PartField):
            yield prefix + field.name, in_words(hints[field.name]), value
            continue
        value = named(taken.kind, value) if isinstance(value, str) else value
        what = _names(known, taken.kind) + (", or a list of columns" if taken.kind == "groups" else "")
        yield prefix + field.name, what, value.name if isinstance(value, Part) else value
        if isinstance(value, Part):
            yield from _fields(known, value, prefix)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return "(required)" if field.default is dataclasses.MISSING else field.default


def _names(known: Plugins, kind: str) -> str:
    return f"one of {', '.join(known.names(kind) if kind in KINDS else CORE_PARTS[kind])}"
