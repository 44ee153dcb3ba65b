"""Plain values on their way between processes, their equality by type and value, and messages. Standard library only.

Plain values are None, bool, int, float, str, bytes, complex, and lists, tuples, dicts, sets and frozensets of these.
They travel as JSON: a list, a text, a number is itself, everything else is an object {"kind": content}. Unpacked values
have exact builtin types, so that nothing of the sender's, such as an `__eq__`, comes along. A message on a socket is
four bytes of length, then JSON.
"""

import json
import math
import socket
from collections.abc import Callable
from typing import Any

LONGEST = 1 << 20  # bytes of one message from a program, and of its output
REQUEST = 1 << 26  # bytes of a program and its test on their way to a guard

DEEPEST = 200  # levels of containers in a value, so that neither side comes near the limit of recursion
GREATEST = 1 << 63  # larger integers travel as hexadecimal text, which has no limit of digits


def to_json(value: Any) -> bytes:
    """A plain value as JSON. TypeError for another value, or one of more than `DEEPEST` levels."""
    return json.dumps(_packed(value, DEEPEST)).encode()


def from_json(text: bytes) -> Any:
    """The value of `to_json`. ValueError if it is not of that form, or nested too deeply."""
    try:
        return _unpacked(json.loads(text), DEEPEST)
    except (RecursionError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"not a packed value: {error}") from error


def _packed(value: Any, levels: int) -> Any:
    if levels < 0:
        raise TypeError(f"a value that is nested more than {DEEPEST} levels is not plain data")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if -GREATEST < value < GREATEST else {"int": hex(value)}
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, list):
        return [_packed(item, levels - 1) for item in value]
    if isinstance(value, dict):
        return {"dict": [[_packed(key, levels - 1), _packed(item, levels - 1)] for key, item in value.items()]}
    if isinstance(value, tuple | set | frozenset):
        kind = next(kind for kind in (tuple, set, frozenset) if isinstance(value, kind))
        return {kind.__name__: [_packed(item, levels - 1) for item in value]}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    raise TypeError(f"a value of type {type(value).__name__} is not plain data")


def _unpacked(data: Any, levels: int) -> Any:
    if levels < 0:
        raise ValueError(f"nested more than {DEEPEST} levels")
    if isinstance(data, list):
        return [_unpacked(item, levels - 1) for item in data]
    if not isinstance(data, dict):
        return data
    ((kind, content),) = data.items()
    if kind == "int":
        return int(content, 16)
    if kind == "dict":
        return {_unpacked(key, levels - 1): _unpacked(value, levels - 1) for key, value in content}
    if kind == "bytes":
        return bytes.fromhex(content)
    if kind == "complex":
        return complex(*content)
    kinds: dict[str, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset}
    return kinds[kind](_unpacked(item, levels - 1) for item in content)


def same(expected: Any, value: Any, numbers: bool = False) -> bool:
    """Whether a returned value is the expected JSON value, by type and value.

    True, 1 and 1.0 differ from each other; nan equals nan; a tuple is a JSON array, as a list is; keys of an object are
    texts, in any order. Sets, bytes and complex numbers are no JSON values and equal nothing. With `numbers`, True, 1
    and 1.0 are equal, as in Python.
    """
    if isinstance(expected, list):
        pairs = isinstance(value, list | tuple) and len(value) == len(expected)
        return pairs and all(same(one, other, numbers) for one, other in zip(expected, value, strict=True))
    if isinstance(expected, dict):
        keys = isinstance(value, dict) and value.keys() == expected.keys()
        return keys and all(same(one, value[key], numbers) for key, one in expected.items())
    if type(expected) is not type(value):
        return numbers and isinstance(expected, int | float) and isinstance(value, int | float) and expected == value
    return bool(expected == value) or (type(value) is float and math.isnan(value) and math.isnan(expected))


class TooLarge(ValueError):
    """A message is larger than the receiver accepts."""


def send(connection: socket.socket, message: bytes) -> None:
    connection.sendall(len(message).to_bytes(4, "big") + message)


def receive(recv: Callable[[int], bytes], longest: int = LONGEST) -> bytes | None:
    """The next message of a socket with this `recv`; None at the end. TooLarge before any of a larger one is read."""
    head = _exactly(recv, 4)
    size = int.from_bytes(head, "big")
    if size > longest:
        raise TooLarge(f"larger than {longest} bytes")
    content = _exactly(recv, size)
    return content if len(head) == 4 and len(content) == size else None


def _exactly(recv: Callable[[int], bytes], size: int) -> bytes:
    content = bytearray()
    while len(content) < size and (part := recv(min(size - len(content), 1 << 16))):
        content += part
    return bytes(content)
