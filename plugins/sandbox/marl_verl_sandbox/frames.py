"""Messages on a socket: four bytes of length, then JSON. Standard library only."""

from __future__ import annotations

import socket
from typing import Protocol

LONGEST = 1 << 20
"""Bytes of one message from a program, and of its output."""
REQUEST = 1 << 26
"""Bytes of a program and its test on their way to a guard."""


class TooLarge(ValueError):
    """A message is larger than the receiver accepts."""


def send(connection: socket.socket, message: bytes) -> None:
    """Send one message."""
    connection.sendall(len(message).to_bytes(4, "big") + message)


class Readable(Protocol):
    """A socket, or what stands for one."""

    def recv(self, size: int, /) -> bytes: ...


def receive(connection: Readable, longest: int = LONGEST) -> bytes | None:
    """The next message; None at the end. TooLarge before any of a larger one is read."""
    head = _exactly(connection, 4)
    if head is None:
        return None
    size = int.from_bytes(head, "big")
    if size > longest:
        raise TooLarge(f"larger than {longest} bytes")
    return _exactly(connection, size)


def _exactly(connection: Readable, size: int) -> bytes | None:
    found = bytearray()
    while len(found) < size:
        part = connection.recv(min(size - len(found), 1 << 16))
        if not part:
            return None
        found += part
    return bytes(found)
