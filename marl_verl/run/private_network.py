"""A network of its own for a run's processes, with a loopback interface only: no other process can connect to it.

A Linux network namespace. A user who is not root makes it in a user namespace, which the kernel may forbid.
`python -m marl_verl.run.private_network ...` is `python ...` in one.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator

from omegaconf import DictConfig

from marl_verl.config.hardware import ray_address
from marl_verl.errors import check as checked
from marl_verl.team import TeamConfig

NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000  # CLONE_NEWUSER, CLONE_NEWNET
GET_FLAGS, SET_FLAGS, UP = 0x8913, 0x8914, 0x1  # SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP
KEY = "marl.run.private_network"


def enter() -> None:
    """Move this process, which has one thread, into a new network. OSError if the kernel forbids it."""
    user, group = os.geteuid(), os.getegid()
    if ctypes.CDLL(None, use_errno=True).unshare(NEW_NETWORK | (NEW_USER if user else 0)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    if user:  # it keeps its numbers
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.Struct("16sh14x")  # struct ifreq
        _, flags = request.unpack(fcntl.ioctl(any_socket, GET_FLAGS, request.pack(b"lo", 0)))
        fcntl.ioctl(any_socket, SET_FLAGS, request.pack(b"lo", flags | UP))


@checked
def check(config: DictConfig, team: TeamConfig) -> Iterator[str]:
    """MarlError if the run asks for a private network and cannot have one, or needs another machine."""
    if not config.marl.run.private_network:
        return
    for name, policy in team.policies.items():
        if policy.endpoint is not None:
            yield f"'{KEY}' is on, but policy '{name}' is an endpoint, which is outside: set it to false"
    if (address := ray_address(config)) is not None:
        yield f"'{KEY}' is on, but 'ray_kwargs.ray_init.address' is '{address}': set one of them only"
    if why := _forbidden():
        advice = "set it to false, or use a container of your own (docs/security.md)"
        yield f"'{KEY}' is on, but this machine makes no network for a process ({why}): {advice}"


def _forbidden() -> str:
    """Why `enter` fails here; empty if it works. Tried in a process of its own."""
    tried = subprocess.run([sys.executable, "-m", __name__, "-c", ""], capture_output=True, text=True)
    return tried.stderr.strip().rpartition("\n")[2] if tried.returncode else ""


if __name__ == "__main__":
    enter()
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
