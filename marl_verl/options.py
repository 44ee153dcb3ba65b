"""Options: the annotated attributes of a class are its config keys; types and ranges are checked.

class Search(Sampler):
    width: Positive = 4                                  # an integer >= 1
    decay: Annotated[float, Interval(gt=0, le=1)] = 0.9  # `annotated_types`: Ge, Gt, Le, Lt, Interval
    order: Literal["depth", "breadth"] = "depth"
"""

import dataclasses
import operator
import types
from collections.abc import Callable, Mapping, Sequence
from typing import (
    Annotated,
    Any,
    Literal,
    Self,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from annotated_types import Ge, Interval

from marl_verl.errors import MarlError, nearest, shown

__all__ = ["Count", "NonNegative", "Options", "Positive", "build", "check_type", "in_words"]

T = TypeVar("T")
Positive = Annotated[int, Ge(1)]
NonNegative = Annotated[int, Ge(0)]
Count = Annotated[int, Interval(ge=1, le=4096)]
"""The number of episodes, candidates or nodes of a task: all are in memory at the same time."""

BOUNDS = {"ge": (">=", operator.ge), "gt": (">", operator.gt), "le": ("<=", operator.le), "lt": ("<", operator.lt)}
"""Attribute of an annotation -> (sign in messages, comparison)."""
LARGEST = 1e300  # larger numbers, infinities and NaN are rejected: they would fail far from where they were set


@dataclass_transform()
class Options:
    """Base of parts that are configured by name: annotated attributes become keyword options (a dataclass)."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclasses.dataclass(cls)

    @classmethod
    def for_options(cls, given: Mapping[str, Any]) -> type[Self]:
        """The class to construct: override it if the value of one option decides which others there are."""
        return cls


def build(cls: type[T], options: Mapping[str, Any] | None, where: str) -> T:
    """Construct `cls`, a dataclass such as every subclass of `Options`, from config.

    Args:
        options: option name -> value, as read from config; a mapping where the option is a dataclass itself.
        where: config key of the section, e.g. "marl.task.options"; it begins the error message.

    Raises:
        MarlError: an unknown option (with the nearest), a wrong type, a missing option, or a value that `cls` rejects.
    """
    if not isinstance(options, Mapping | None):
        raise MarlError(f"'{where}' must be a mapping of options, got {shown(options)}")
    given = dict(options or {})
    cls = cls.for_options(given) if issubclass(cls, Options) else cls
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type]
    hints = get_type_hints(cls, include_extras=True)
    for name, value in given.items():
        if name not in fields:
            raise MarlError(f"unknown key '{where}.{name}': {nearest(str(name), fields)}")
        union = get_args(hints[name]) if get_origin(hints[name]) in (Union, types.UnionType) else (hints[name],)
        nested = next((part for part in union if dataclasses.is_dataclass(part)), None)
        if isinstance(nested, type) and isinstance(value, Mapping):
            given[name] = build(nested, value, f"{where}.{name}")
        else:
            check_type(value, hints[name], f"{where}.{name}")
    for name, field in fields.items():
        if name not in given and field.default is field.default_factory is dataclasses.MISSING:
            raise MarlError(f"'{where}.{name}' is missing. Give it a value.")
    try:
        return cls(**given)
    except (MarlError, ValueError, TypeError) as error:  # raised by `__post_init__`
        raise MarlError(f"{where}: {error}") from error


def check_type(value: Any, hint: Any, where: str, why: str = "") -> None:
    """Raise MarlError unless `value` is a `hint`: a class (also of a container), a union, a Literal, or Annotated.

    The message ends with the nearest valid text, else with `why`.
    """
    if not _matches(value, hint):
        literals = [part for part in (hint, *get_args(hint)) if get_origin(part) is Literal]
        names = [name for part in literals for name in get_args(part) if isinstance(name, str)]
        near = nearest(value, names) if isinstance(value, str) else ""
        hint_at_end = near if "did" in near else why
        message = f"'{where}' must be {in_words(hint)}, got {shown(value, 200)}"
        raise MarlError(f"{message}: {hint_at_end}" if hint_at_end else message)


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
    words: dict[Any, str] = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
    words |= {tuple: "a list", list: "a list", Sequence: "a list"}
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
    if hint is None or hint is type(None):
        return value is None
    if hint is float:  # YAML writes a float such as 1.0 also as 1; a bool is no number
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62
    expected = origin or hint
    if expected is tuple:
        return isinstance(value, tuple | list)
    return isinstance(value, expected) if isinstance(expected, type) else True
