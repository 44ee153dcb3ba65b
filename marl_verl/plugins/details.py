"""Details of registered parts for `marl-verl plugins NAME`: origin, docstring, and options with types and defaults."""

import dataclasses
import inspect
import sys
from collections.abc import Iterator
from typing import Any, get_type_hints

from marl_verl.algo.algorithms import Algorithm
from marl_verl.errors import MarlError
from marl_verl.options import Part, config_of, in_words
from marl_verl.plugins.lookup import Plugins
from marl_verl.plugins.registry import KINDS, Entry

SECTIONS = {"tasks": "marl.task.options", "workflows": "marl.workflow.options", "samplers": "marl.sampler.options"}
WITHOUT = ("rewards", "losses", "scripts")  # kinds of parts without options
Option = tuple[str, str, Any]  # name in a config, type in words, default


def details(known: Plugins, name: str) -> list[dict[str, Any]]:
    """One JSON record per part of that name, or "distribution:name"; none if there is no such part."""
    return [_record(known, entry) for kind in KINDS for entry in known.find(kind, name)]


def _record(known: Plugins, entry: Entry) -> dict[str, Any]:
    source, record = entry.source, dict[str, Any](kind=KINDS[entry.kind], name=entry.name)
    record |= {"distribution": source.distribution, "version": source.version, "target": entry.shown, "error": ""}
    try:
        target = known.get(entry.kind, f"{source.distribution}:{entry.name}")
        listed = isinstance(target, Algorithm) or (entry.kind not in WITHOUT and dataclasses.is_dataclass(target))
        options = list(_fields(target, "")) if listed else []
    except Exception as error:  # noqa: BLE001  code of a plugin, which must not hide the other parts
        return {**record, "error": str(error) if isinstance(error, MarlError) else repr(error)}
    record |= {"doc": _doc(target, entry), "section": SECTIONS.get(entry.kind, "marl.algorithm.options")}
    return {**record, "options": {name: {"type": kind, "default": default} for name, kind, default in options}}


def _doc(target: Any, entry: Entry) -> str:
    """The docstring of a class or function; of an object, that of the module that defines it."""
    if inspect.isclass(target):
        doc = vars(target).get("__doc__") or ""
        return "" if doc.startswith(f"{target.__name__}(") else inspect.cleandoc(doc)  # written by `dataclass`
    if inspect.isroutine(target):
        return inspect.getdoc(target) or ""
    place = entry.target if isinstance(entry.target, str) else entry.source.target
    return inspect.getdoc(sys.modules.get(place.partition(":")[0])) or ""


def _fields(part: Any, prefix: str) -> Iterator[Option]:
    """The options of a class or an object, and those of its nested parts."""
    hints = get_type_hints(part if inspect.isclass(part) else type(part), include_extras=True)
    for field in dataclasses.fields(part):
        if not field.init:
            continue
        value = _default(field) if inspect.isclass(part) else getattr(part, field.name)
        yield (
            prefix + field.name,
            in_words(hints[field.name]),
            value.name if isinstance(value, Part) else config_of(value),
        )
        for nested in value if isinstance(value, tuple) else (value,):
            if isinstance(nested, Part):
                yield from _fields(nested, f"{prefix}{field.name}.")


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return "(required)" if field.default is dataclasses.MISSING else field.default
