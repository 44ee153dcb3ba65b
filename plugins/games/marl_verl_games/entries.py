"""Entries of generators as JSON values: tuples, sets, numpy values and other keys than texts come back as they were."""

from typing import Any

import numpy as np

from marl_verl.errors import MarlError

KIND = "__kind__"
_PLAIN = (str, int, float, bool, type(None))
_LISTS = {"tuple": tuple, "set": set, "frozenset": frozenset}


def encoded(value: Any) -> Any:
    """A JSON value from which `decoded` makes an equal value. MarlError for a value of an unknown type."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, list):
        return [encoded(item) for item in value]
    if isinstance(value, dict):
        if KIND not in value and all(type(key) is str for key in value):
            return {key: encoded(item) for key, item in value.items()}
        return {KIND: "dict", "of": [[encoded(key), encoded(item)] for key, item in value.items()]}
    if isinstance(value, np.generic):
        return encoded(value.item())
    if isinstance(value, np.ndarray):
        return {KIND: "array", "of": value.tolist(), "dtype": str(value.dtype)}
    name = type(value).__name__
    if isinstance(value, tuple):
        return {KIND: "tuple", "of": [encoded(item) for item in value]}
    if isinstance(value, set | frozenset):
        return {KIND: name, "of": sorted((encoded(item) for item in value), key=repr)}
    if isinstance(value, str | int | float):  # an enum, or another subclass
        return encoded(value.value if hasattr(value, "value") else value)
    raise MarlError(f"a {name} in the entry of a generator cannot be written as JSON: {value!r:.80}")


def decoded(value: Any) -> Any:
    """The value that `encoded` got."""
    if isinstance(value, list):
        return [decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    kind = value.get(KIND)
    if kind is None:
        return {key: decoded(item) for key, item in value.items()}
    if kind == "dict":
        return {decoded(key): decoded(item) for key, item in value["of"]}
    if kind == "array":
        return np.array(value["of"], dtype=value["dtype"])
    return _LISTS[kind](decoded(item) for item in value["of"])
