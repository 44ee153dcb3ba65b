"""Options: the annotated attributes of a class are its config keys; types and ranges are checked.

class Search(Sampler):
    width: Positive = 4                                  # an integer >= 1
    decay: Annotated[float, Interval(gt=0, le=1)] = 0.9  # `annotated_types`: Ge, Gt, Le, Lt, Interval
    order: Literal["depth", "breadth"] = "depth"
"""

import collections.abc
import dataclasses
import inspect
import math
import operator
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from annotated_types import Ge, Interval

from marl_verl.errors import MarlError, check, nearest, shown, unknown, user_error

__all__ = ["Count", "NonNegative", "Positive", "build"]

T = TypeVar("T")
Positive = Annotated[int, Ge(1)]
NonNegative = Annotated[int, Ge(0)]
Share = Annotated[float, Interval(ge=0, le=1)]
Small = Annotated[float, Ge(0)]
"""A number added to a divisor, 0 or above."""
Count = Annotated[int, Interval(ge=1, le=4096)]
"""The number of episodes, candidates or nodes of a task: all are in memory at the same time."""

BOUNDS = {"ge": (">=", operator.ge), "gt": (">", operator.gt), "le": ("<=", operator.le), "lt": ("<", operator.lt)}
"""Attribute of an annotation -> (sign in messages, comparison)."""


@dataclass_transform()
class Options:
    """Base of parts that are configured by name: annotated attributes become keyword options (a dataclass)."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclasses.dataclass(cls)


class Part:
    """Base of parts that config names: `returns: gae`, or with options `returns: {name: gae, lam: 0.9}`.

    Subclasses are frozen dataclasses, whose fields are their options; fields may be parts themselves.

    Attributes:
        kind: noun in error messages, e.g. "advantage".
        name: name in config (default: the class name in kebab-case).
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
    def path(self) -> str:
        """Its class as "package.module:Class", a name that is valid in every config."""
        return f"{type(self).__module__}:{type(self).__qualname__}"

    @property
    def described(self) -> str:
        """The method that computes it, for errors, e.g. "`LeaveOneOut.compute` of 'leave-one-out'"."""
        return f"`{type(self).__name__}.compute` of '{self.name}'"


def parts_of(part: Part) -> Iterator[Part]:
    """A part, and the parts of its options."""
    yield part
    for field in dataclasses.fields(part):  # type: ignore[arg-type]
        if isinstance(value := getattr(part, field.name), Part):
            yield from parts_of(value)


@check
def check_decorated(cls: type[Part]) -> Iterator[str]:
    """MarlError for a class of parts that is no dataclass, or whose own annotations would be no options."""
    own, inherited = vars(cls), {name for base in cls.__mro__[1:] for name in vars(base).get("__annotations__", ())}
    inherited -= {field.name for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    hints = {name: str(hint) for name, hint in get_type_hints(cls).items() if name in own.get("__annotations__", ())}
    options = [name for name, hint in hints.items() if "ClassVar" not in hint and name not in inherited]
    if not dataclasses.is_dataclass(cls) or (options and "__dataclass_fields__" not in own):
        rule = "annotated attributes are options, unless they are ClassVar"
        yield f"decorate class '{cls.__name__}' with @dataclass(frozen=True): {rule}"


@check
def check_defaults(cls: type) -> Iterator[str]:
    """MarlError for a new default of an inherited option that has no annotation: a dataclass would ignore it."""
    for name in (field.name for field in dataclasses.fields(cls) if field.init):
        typed = {base: name in vars(base).get("__annotations__", ()) for base in cls.__mro__}
        owner = next(base for base in cls.__mro__ if typed[base] or name in vars(base))
        if not typed[owner] and not isinstance(vars(owner)[name], types.MemberDescriptorType):  # of slots
            yield f"annotate '{owner.__name__}.{name}': a dataclass ignores the default of an option without a type"


def check_parts(part: Part) -> None:
    """MarlError as `check_decorated`, and for an option of a part that must be a part and is not."""
    check_decorated(type(part))
    check_defaults(type(part))
    for name, hint in get_type_hints(type(part)).items():
        if _is_part(hint):
            check_type(getattr(part, name), hint, f"{part.name}.{name}")


@dataclasses.dataclass(frozen=True, eq=False)
class Names:
    """In `Annotated`: names of values, which config may have in their place."""

    values: Mapping[str, Any]


Find = Callable[[type[Part] | None, str, str], Any]
"""(base class of a part or None; name; config key) -> a subclass or object, or the function; MarlError if unknown."""


def build(
    cls: type[T], options: Mapping[str, Any] | None, where: str, find: Find | None = None, old: T | None = None
) -> T:
    """Construct `cls`, a dataclass such as every subclass of `Options` or `Part`, from config.

    Args:
        options: option name -> value, as read from config; a mapping where the option is a dataclass itself. A part is
            a name, or a mapping with the key `name`; without `name`, the default part is kept.
        where: config key of the section, e.g. "marl.task.options"; it begins the error message.
        find: resolves names of parts.
        old: an object of which a copy is made with these options changed: its other options and parts are kept.

    Raises:
        MarlError: an unknown option (with the nearest), a wrong type, a missing option, or a value that `cls` rejects.
    """
    check_type(options, Mapping | None, where)
    check_defaults(cls)
    chosen, base = dict(options or {}), cls if old is None else old
    fields = [field.name for field in dataclasses.fields(cls) if field.init]  # type: ignore[arg-type]
    hints = get_type_hints(cls, include_extras=True)
    values = {}
    for name, value in chosen.items():
        if name not in fields:
            nested = paths(base, str(name))
            hint = f"write '{where}.{nested[0]}'" if nested else nearest(str(name), fields)
            raise MarlError(f"unknown key '{where}.{name}': {hint}")
        values[name] = _read(value, hints[name], getattr(base, name, None), f"{where}.{name}", find)
    with user_error(where, MarlError, ValueError, TypeError):  # for a missing option, and raised by `__post_init__`
        return cls(**values) if old is None else dataclasses.replace(old, **values)  # type: ignore[type-var]


def paths(base: Any, name: str) -> list[str]:
    """Where the nested parts of a class or an object have an option: "advantage.returns.gamma" for "gamma".

    "credit_unit" is option `unit` of the parts of `credit`.
    """
    places = []
    for field in dataclasses.fields(base) if dataclasses.is_dataclass(base) else ():
        value = getattr(base, field.name, None)
        parts = [part for part in (value if isinstance(value, tuple) else (value,)) if isinstance(part, Part)]
        for part in parts:
            plain = name.removeprefix(f"{field.name}_")
            own = [option.name for option in dataclasses.fields(part) if option.name in (name, plain)]  # type: ignore[arg-type]
            places += [f"{field.name}.{option}" for option in (*own, *paths(part, name))]
    return places


def config_of(value: Any) -> Any:
    """A part, or another value of an option, as JSON values that `build` reads."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        options = {field.name: config_of(getattr(value, field.name)) for field in dataclasses.fields(value)}
        if not isinstance(value, Part):
            return options
        name = value.name if value.path.startswith("marl_verl.") else value.path
        return {"name": name, **options} if options else name
    if isinstance(value, Mapping):
        return {key: config_of(option) for key, option in value.items()}
    if inspect.isroutine(value):
        return f"{value.__module__}:{value.__qualname__}"
    return [config_of(option) for option in value] if isinstance(value, list | tuple) else value


def _read(value: Any, hint: Any, old: Any, where: str, find: Find | None) -> Any:
    """The value of an option from config; `old` is its value without one."""
    union = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    for option in union:
        for names in (note for note in getattr(option, "__metadata__", ()) if isinstance(note, Names)):
            if isinstance(value, str):
                if value not in names.values:
                    raise MarlError(f"'{where}': {unknown('name', value, names.values)}")
                return names.values[value]
        kind = get_args(option)[0] if get_origin(option) is tuple else None
        if _is_part(kind) or get_origin(kind) is collections.abc.Callable:
            items = value if isinstance(value, list | tuple) else [] if value in (None, "none") else [value]
            return tuple(_item(item, kind, old or (), where, find) for item in items)
        if _is_part(option):
            return _part(value, option, old, where, find)
        if isinstance(option, type) and dataclasses.is_dataclass(option) and isinstance(value, Mapping):
            return build(option, value, where, find, old if isinstance(old, option) else None)
    check_type(value, hint, where)
    plain = [option.__origin__ if get_origin(option) is Annotated else option for option in union]
    return tuple(value) if isinstance(value, list) and any(get_origin(kind) is tuple for kind in plain) else value


def _is_part(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Part)


def _item(value: Any, kind: Any, old: Sequence[Any], where: str, find: Find | None) -> Any:
    """A part of a list, or a function; `old` has the parts without the option."""
    if not _is_part(kind):
        return value if callable(value) or find is None else find(None, value, where)
    name = value.get("name") if isinstance(value, Mapping) else value
    same = [part for part in old if name in (part.name, part.path)] or (old if len(old) == 1 else [None])
    return _part(value, kind, same[0], where, find)


def _part(value: Any, kind: type[Part], old: Any, where: str, find: Find | None) -> Any:
    """A part from its name, or from a mapping of options and `name`."""
    if isinstance(value, kind):
        return value
    check_type(value, str | Mapping, where)
    options = dict(value) if isinstance(value, Mapping) else {"name": value}
    name = options.pop("name", None)
    if old is None or name not in (None, old.name, old.path):
        old = find(kind, str(name), where) if find else kind
    cls = old if isinstance(old, type) else type(old)
    check_decorated(cls)
    return build(cls, options, where, find, None if cls is old else old)


def check_type(value: Any, hint: Any, where: str) -> None:
    """Raise MarlError unless `value` is a `hint`: a class (also of a container), a union, a Literal, or Annotated."""
    if not _matches(value, hint):
        raise MarlError(f"'{where}' must be {in_words(hint)}, got {shown(value, 200)}")


def in_words(hint: Any) -> str:
    """Describe a type in terms of YAML."""
    origin = get_origin(hint)
    if origin is Annotated:
        return in_words(hint.__origin__) + " and".join(f" {sign} {bound}" for sign, _, bound in _bounds(hint))
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(in_words(part) for part in get_args(hint)))
    if hint is type(None):
        return "null"
    if origin is Literal:
        return f"{'one of ' * (len(get_args(hint)) > 1)}{', '.join(map(repr, get_args(hint)))}"
    if origin is list or (origin is tuple and _is_part(get_args(hint)[0])):
        return f"a list of {in_words(get_args(hint)[0])}"
    words: dict[Any, str] = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
    words |= dict.fromkeys((tuple, list, Sequence), "a list")
    expected = origin or hint
    if isinstance(expected, type) and (issubclass(expected, Mapping) or dataclasses.is_dataclass(expected)):
        return "a mapping"
    return words.get(expected) or str(getattr(hint, "__name__", hint))


def _bounds(hint: Any) -> list[tuple[str, Callable[[Any, Any], bool], float]]:
    """The range that a type is annotated with: (sign, comparison, bound) for each bound."""
    notes = [(getattr(note, name, None), how) for note in hint.__metadata__ for name, how in BOUNDS.items()]
    return [(*how, bound) for bound, how in notes if bound is not None]


def _matches(value: Any, hint: Any) -> bool:
    origin = get_origin(hint)
    if hint is Any:
        return True
    if origin is Annotated:
        return _matches(value, hint.__origin__) and all(holds(value, bound) for _, holds, bound in _bounds(hint))
    if origin in (Union, types.UnionType):
        return any(_matches(value, part) for part in get_args(hint))
    if origin is Literal:
        return value in get_args(hint)
    if hint is float:  # YAML writes a float such as 1.0 also as 1; a bool is no number
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    expected = origin or hint
    if expected is tuple:
        kind = next(iter(get_args(hint)), Any)
        return isinstance(value, tuple | list) and (not _is_part(kind) or all(isinstance(part, kind) for part in value))
    if origin is list:
        return isinstance(value, list | tuple) and all(_matches(element, get_args(hint)[0]) for element in value)
    return isinstance(value, expected) if isinstance(expected, type) else True
