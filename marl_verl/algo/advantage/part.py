"""Parts of an algorithm, given as objects or by name. Their options are their fields, flat in config.

A name of the core is resolved on assignment. Any other name may be a plugin's: it is a `Named` part until the plugin
registry resolves the algorithm.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Generic, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from marl_verl.algo.core_parts import CORE_PARTS
from marl_verl.errors import MarlError, nearest, unknown
from marl_verl.options import check_type

Find = Callable[[str, str], Any]
"""(kind, name) -> the registered part or class."""

P = TypeVar("P")

ARGUMENTS = {"groups": "group", "baselines": "baseline", "scales": "scale"}
"""Kinds that plugins cannot register -> singular, for errors."""


class Part:
    """Base of returns, baselines, scales, mixes, table credits and estimators: a frozen dataclass.

    Attributes:
        kind: "returns", "baselines", ...; a key of `plugins.KINDS` if plugins can register such parts.
        name: the registered name (default: the class name in kebab-case).
        one_side: why all agents must be of one side, because it compares or adds up rewards of different agents; None
            if sides may compete.
    """

    kind: ClassVar[str]
    name: ClassVar[str]
    one_side: ClassVar[str | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in vars(cls):
            # LeaveOneOut -> leave-one-out
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", cls.__name__).lower()

    @property
    def described(self) -> str:
        """The method that computes it, for errors, e.g. "`LeaveOneOut.compute` of 'leave-one-out'"."""
        return f"`{type(self).__name__}.compute` of '{self.name}'"


@dataclasses.dataclass(frozen=True, init=False, eq=False)
class Named(Part):
    """A part known only by its name. MarlError if it is used before the plugin registry has resolved it."""

    def __init__(self, kind: str, name: str) -> None:
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "name", name)

    def __repr__(self) -> str:
        return repr(self.name)

    def __getattr__(self, attribute: str) -> NoReturn:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        raise MarlError(
            f"'{self.name}' is not among the {self.kind} of marl-verl ({', '.join(CORE_PARTS[self.kind])}). "
            "A plugin's name is resolved in a registered algorithm; elsewhere pass the object."
        )


class PartField(Generic[P]):
    """A field of a part or algorithm that takes a part or its name: `baseline=LeaveOneOut()` or "leave-one-out".

    It reads as the part, or for kind "groups" as the tuple of columns.

    Raises:
        MarlError: on assignment, for an unknown name (with the nearest one), or an object of another kind.
    """

    def __init__(self, kind: str, default: P | str) -> None:
        self.kind, self.default = kind, default

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, part: object | None, owner: type) -> P:
        return self.default if part is None else part.__dict__[self.name]  # type: ignore[return-value]

    def __set__(self, part: object, value: P | str) -> None:
        found: Any = named(self.kind, value) if isinstance(value, str) else value
        if self.kind != "groups" and (isinstance(found, type) or getattr(found, "kind", None) != self.kind):
            raise MarlError(f"'{self.name}' must be one of the {self.kind} or a name, got {value!r:.80}")
        part.__dict__[self.name] = found


def named(kind: str, name: str) -> Any:
    """The core's part of that name, or a `Named` part. MarlError (with the nearest) if plugins cannot register it."""
    found = _core(kind, name)
    return found() if isinstance(found, type) else found


def _core(kind: str, name: str) -> Any:
    """As `named`, but return the class if the core registers a class."""
    target = CORE_PARTS[kind].get(name)
    if target is not None:
        module, _, attribute = target.partition(":")
        return getattr(importlib.import_module(module), attribute)
    if kind in ARGUMENTS:
        raise unknown(ARGUMENTS[kind], name, CORE_PARTS[kind])
    return Named(kind, name)


def flat(part: Part) -> dict[str, Any]:
    """Option -> value of a part and its nested parts. MarlError if two of them have an option of the same name."""
    found: dict[str, Any] = {}
    for name, value in _walk(part):
        if name in found:
            raise MarlError(f"option '{name}' is in {part.name} twice: rename one")
        found[name] = _plain(value)
    return found


def _walk(part: Any) -> Iterator[tuple[str, Any]]:
    if not dataclasses.is_dataclass(part):
        raise MarlError(f"{type(part).__name__} must be a dataclass: its fields are its options")
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if isinstance(value, str) and (wanted := _part_hint(part, field.name)) is not None:
            kind, name = wanted.kind, wanted.__name__
            right = f'{field.name}: PartField[{name}] = PartField("{kind}", {value!r})'
            what = f"'{field.name}' of {type(part).__name__} is the name {value!r}, not a {name}"
            raise MarlError(f"{what}: write `{right}`")
        yield field.name, value
        if isinstance(value, Part):
            yield from _walk(value)


def _part_hint(part: Any, field: str) -> type[Part] | None:
    """The kind of part that a plain field is annotated with, or None."""
    if isinstance(inspect.getattr_static(type(part), field, None), PartField):
        return None
    try:
        hint = get_type_hints(type(part)).get(field)
    except NameError:  # a class that is defined in a function
        return None
    return hint if isinstance(hint, type) and issubclass(hint, Part) else None


def _plain(value: Any) -> Any:
    """A value as a JSON value."""
    if isinstance(value, Part):
        return value.name
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value


def changed(part: P, options: Mapping[str, Any], find: Find | None, where: str) -> P:
    """A copy of a part with those of `options` that belong to it or its nested parts, which `options` may replace.

    `find` resolves names (None: only those of the core); `where` is the config key, as a prefix of error messages.
    """
    hints = get_type_hints(type(part))
    new: dict[str, Any] = {}
    for field in dataclasses.fields(part):  # type: ignore[arg-type]
        old, key = getattr(part, field.name), f"{where}{'' if where.endswith('_') else '.'}{field.name}"
        if isinstance(old, Part):
            wanted = options.get(field.name, old.name)
            check_type(wanted, str, key)
            new[field.name] = changed(replaced(old, wanted, find, key), options, find, where)
        elif field.name in options:
            value = options[field.name]
            if field.name in ("group", "scale_group") and isinstance(value, str):
                value = named("groups", value)
            hint = hints[field.name]
            check_type(value, get_args(hint)[0] if get_origin(hint) is PartField else hint, key)
            new[field.name] = value
    if not new:
        return part
    try:
        return dataclasses.replace(part, **new)  # type: ignore[type-var]
    except MarlError as error:
        raise MarlError(f"{where.removesuffix('_')}: {error}") from error


def replaced(old: Part, wanted: str, find: Find | None, key: str) -> Any:
    """The part named `wanted`; a registered class is created with the values of the fields it shares with `old`."""
    if isinstance(old, Named) and find is not None:
        resolved = _found(old, old.name, find, key)
        return resolved if wanted == old.name else replaced(resolved, wanted, find, key)
    return old if wanted == old.name else _found(old, wanted, find, key)


def _found(old: Part, wanted: str, find: Find | None, key: str) -> Any:
    """The part named `wanted`, of the same kind as `old`."""
    found = _core(old.kind, wanted) if find is None or old.kind in ARGUMENTS else find(old.kind, wanted)
    new = found() if isinstance(found, type) else found
    if isinstance(new, Named):
        raise MarlError(f"'{key}' cannot be changed to '{wanted}' without the plugins")
    if not dataclasses.is_dataclass(new) or not isinstance(new, Part) or new.kind != old.kind:
        raise MarlError(f"'{key}': '{wanted}' is registered among {old.kind} and is not one: {new!r:.80}")
    if not isinstance(found, type):
        return new  # a registered object keeps its values
    mine, theirs = get_type_hints(type(new)), get_type_hints(type(old))
    # only fields of the same type: a `mode` with other choices is another option
    common = [f.name for f in dataclasses.fields(new) if f.name in theirs and mine[f.name] == theirs[f.name]]
    return dataclasses.replace(new, **{name: getattr(old, name) for name in common})


def check_known(options: Iterable[str], valid: Collection[str], where: str) -> None:
    """Raise MarlError for the first unknown option, with the nearest name."""
    for name in options:
        if name not in valid:
            raise MarlError(f"unknown key '{where}.{name}': {nearest(str(name), valid)}")
