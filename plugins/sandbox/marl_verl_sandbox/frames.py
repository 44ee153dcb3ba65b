"""Messages on a socket: four bytes of length, then JSON. Standard library only."""

import socket
from collections.abc import Callable

LONGEST = 1 << 20  # bytes of one message from a program, and of its output
REQUEST = 1 << 26  # bytes of a program and its test on their way to a guard


class TooLarge(ValueError):
    """A message is larger than the receiver accepts."""


def send(connection: socket.socket, message: bytes) -> None:
    """Send one message."""
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
