"""Landlock (Linux 5.13): a process gives up files, and the memory and descriptors of every other process, for good.

Tier `limits` uses it. The kernel then also refuses ptrace and /proc/PID/mem, fd, environ, maps of all processes but
those that the restricted process has started. Standard library only.
"""

import ctypes
import os
from collections.abc import Iterable

from marl_verl_sandbox.namespaces import library

CREATE, ADD, RESTRICT = 444, 445, 446  # system calls, the same on x86_64 and aarch64
WRITE, FILE, NAMES = 1 << 1, 1 << 2, 1 << 3  # LANDLOCK_ACCESS_FS_WRITE_FILE, READ_FILE, READ_DIR
READ, DEVICE = FILE | NAMES, WRITE | FILE
ALL = 0x1FFF
SINCE = {2: 1 << 13, 3: 1 << 14, 5: 1 << 15}  # version -> REFER, TRUNCATE, IOCTL_DEV
OF_FILES = WRITE | FILE | 1 << 14 | 1 << 15  # rights that a rule for a file may have


def version() -> int:
    """The kernel's version of Landlock; 0 if it has none."""
    return max(0, int(library.syscall(CREATE, None, ctypes.c_size_t(0), 1)))


def everything() -> int:
    """All rights that the kernel knows."""
    return ALL | sum(right for since, right in SINCE.items() if version() >= since)


def rules(paths: Iterable[tuple[str | int, int]]) -> int:
    """A descriptor of a set of rules: no right of files but the given ones, each for all below a path or descriptor.
    OSError: the kernel has no Landlock, or a path is not there."""
    rights = everything()
    descriptor = _call(CREATE, ctypes.byref(ctypes.c_uint64(rights)), ctypes.c_size_t(8), 0)
    for path, allowed in paths:
        file = os.open(path, os.O_PATH | os.O_CLOEXEC) if isinstance(path, str) else path
        allowed &= rights if os.path.isdir(file) else rights & OF_FILES
        rule = allowed.to_bytes(8, "little") + file.to_bytes(4, "little")  # packed
        _call(ADD, descriptor, 1, ctypes.c_char_p(rule), 0)  # LANDLOCK_RULE_PATH_BENEATH
        if isinstance(path, str):
            os.close(file)
    return descriptor


def restrict(descriptor: int) -> None:
    """Restrict this process, which must have `no_new_privs`, to a set of rules, beside those that it has already."""
    _call(RESTRICT, descriptor, 0)


def _call(number: int, *arguments: object) -> int:
    result: int = library.syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"Landlock: {os.strerror(ctypes.get_errno())}")
    return result
