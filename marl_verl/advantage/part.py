"""Parts: the small things an advantage is composed of. Their options are their fields, flat in config."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar, get_type_hints

from marl_verl.errors import MarlError, nearest
from marl_verl.options import check_type

Find = Callable[[str, str], Any]
"""(kind, name) -> what is registered: a part, its class, or for "groups" a tuple of columns."""

P = TypeVar("P")


class Part:
    """Base of returns, baselines, scales, mixes, table credits and estimators: a frozen dataclass.

    Attributes:
        kind: as in `marl_register_<kind>`.
        name: under which it is registered; the class's name in kebab-case where a class does not say.
    """

    kind: ClassVar[str]
    name: ClassVar[str]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in vars(cls):
            cls.name = kebab(cls.__name__)


def kebab(name: str) -> str:
    """LeaveOneOut -> leave-one-out."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name).lower()


def name_of(part: Any) -> str:
    """The name that a part goes by in config."""
    return str(getattr(part, "name", None) or kebab(type(part).__name__))


def flat(part: Any) -> dict[str, Any]:
    """Option -> value, of a part and of the parts in it: {"returns": "discounted", "gamma": 0.9, ...}.

    MarlError where two of them have an option of the same name.
    """
    found: dict[str, Any] = {}
    for name, value, _ in _walk(part):
        if name in found:
            raise MarlError(f"option '{name}' is in {name_of(part)} twice: rename one")
        found[name] = plain(value)
    return found


def plain(value: Any) -> Any:
    """A value as JSON has it: the name of a part, a list for a tuple, a mapping for a dataclass."""
    if isinstance(value, Part):
        return name_of(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value


def changed(part: P, options: Mapping[str, Any], find: Find | None, where: str) -> P:
    """A copy of a part with those of `options` that are its own, or of the parts in it.

    A part named in `options` replaces the one there; fields that both have keep their value unless `options` has it.

    Args:
        find: looks up names; None where no part is to be replaced.
        where: as the user wrote it; it begins the error.

    Raises:
        MarlError: a wrong type, a name that is not registered, or a value that a part refuses.
    """
    hints = get_type_hints(type(part))
    new: dict[str, Any] = {}
    for field in dataclasses.fields(part):  # type: ignore[arg-type]
        old, key = getattr(part, field.name), f"{where}{'' if where.endswith('_') else '.'}{field.name}"
        if isinstance(old, Part):
            wanted = options.get(field.name, name_of(old))
            check_type(wanted, str, key)
            new[field.name] = changed(replaced(old, wanted, find, key), options, find, where)
        elif field.name in options:
            value = options[field.name]
            if field.name in GROUPS and isinstance(value, str) and find is not None:
                value = find("groups", value)
            check_type(value, hints[field.name], key)
            new[field.name] = value
    if not new:
        return part
    try:
        return dataclasses.replace(part, **new)  # type: ignore[type-var]
    except MarlError as error:
        raise MarlError(f"{where.removesuffix('_')}: {error}") from error


GROUPS = ("group", "scale_group")
"""Fields that hold columns; a registered group's name serves for them."""


def replaced(old: Part, wanted: str, find: Find | None, key: str) -> Any:
    """The part called `wanted`, with the values of fields that it has in common with `old`."""
    if wanted == name_of(old):
        return old
    if find is None:
        raise MarlError(f"'{key}' cannot be changed to '{wanted}' without the plugins")
    found = find(old.kind, wanted)
    new = found() if isinstance(found, type) else found
    if not dataclasses.is_dataclass(new) or not isinstance(new, Part) or new.kind != old.kind:
        raise MarlError(f"'{key}': '{wanted}' is registered among {old.kind} and is not one: {new!r:.80}")
    mine, theirs = get_type_hints(type(new)), get_type_hints(type(old))
    # of the same type: a `mode` of other choices is another option
    common = [f.name for f in dataclasses.fields(new) if f.name in theirs and mine[f.name] == theirs[f.name]]
    return dataclasses.replace(new, **{name: getattr(old, name) for name in common})


def check_known(options: Mapping[str, Any], valid: Mapping[str, Any], where: str) -> None:
    """MarlError for the first option that there is not, with the nearest."""
    for name in options:
        if name not in valid:
            raise MarlError(f"unknown key '{where}.{name}': {nearest(str(name), valid)}")


def _walk(part: Any) -> Iterator[tuple[str, Any, Any]]:
    if not dataclasses.is_dataclass(part):
        raise MarlError(f"{type(part).__name__} must be a dataclass: its fields are its options")
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        yield field.name, value, part
        if isinstance(value, Part):
            yield from _walk(value)
