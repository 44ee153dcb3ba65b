"""What the Linux kernel offers to confine a process: namespaces, mounts, capabilities, Landlock. Standard library only.

Landlock (Linux 5.13), in tier `limits`: a process gives up files for good, and the kernel then also refuses ptrace and
/proc/PID/mem, fd, environ, maps of all processes but those that the restricted process has started.
"""

import ctypes
import os
import re
from collections.abc import Iterable

MOUNTS, UTS, IPC, USER, PIDS, NETWORK = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000  # CLONE_NEW*
READ_ONLY, NO_SUID, NO_DEVICES, NO_EXEC, REMOUNT = 1, 2, 4, 8, 32  # MS_*
BIND, RECURSIVE, PRIVATE = 1 << 12, 1 << 14, 1 << 18  # MS_*
DETACH = 2  # MNT_DETACH
DIE_WITH_PARENT, DUMPABLE, DROP_BOUND, NO_NEW_PRIVILEGES = 1, 4, 24, 38  # PR_*
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}  # a system call without a function in the C library
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache")  # what extension modules are linked with
SYSTEM = (*LIBRARIES, "/usr/share/zoneinfo")
HIDDEN = ("site-packages", "dist-packages")
DEBIAN = "/usr/lib/python3"

LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446  # system calls, the same on x86_64 and aarch64
WRITE, FILE, NAMES = 1 << 1, 1 << 2, 1 << 3  # LANDLOCK_ACCESS_FS_WRITE_FILE, READ_FILE, READ_DIR
READ, DEVICE = FILE | NAMES, WRITE | FILE
ALL = 0x1FFF
SINCE = {2: 1 << 13, 3: 1 << 14, 5: 1 << 15}  # version of Landlock -> REFER, TRUNCATE, IOCTL_DEV
OF_FILES = WRITE | FILE | 1 << 14 | 1 << 15  # rights that a rule for a file may have

OCTAL = re.compile(rb"\\([0-7]{3})")  # of white space in a path of mountinfo

library = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: object) -> None:
    """Call a function of the C library that returns 0, or -1 with errno. OSError if it fails."""
    if getattr(library, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def enter(flags: int, proc: int) -> None:
    """Move this process, which has one thread, into new namespaces; it keeps the numbers of its user and group. `proc`:
    a descriptor of /proc, which the root may lack. OSError: the kernel forbids it."""
    user, group = os.geteuid(), os.getegid()
    call("unshare", flags)
    if flags & USER:
        write("self/setgroups", "deny", proc)
        write("self/uid_map", f"{user} {user} 1", proc)
        write("self/gid_map", f"{group} {group} 1", proc)


def write(path: str, text: str, folder: int) -> None:
    """Write to a file that is there, below an open folder."""
    file = os.open(path, os.O_WRONLY, dir_fd=folder)
    os.write(file, text.encode())
    os.close(file)


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    call("mount", source.encode(), target.encode(), kind and kind.encode(), ctypes.c_ulong(flags), options.encode())


def private_root(stdlib: str, packages: Iterable[str], folder: str) -> None:
    """Replace the root of this mount namespace by one with Python's library, read-only, and nothing else. Packages that
    are installed in `stdlib` are hidden; the folders `packages` appear in `folder`."""
    point = "/sys"  # only this mount namespace sees what is mounted there
    mount("none", "/", None, RECURSIVE | PRIVATE)
    mount("tmpfs", point, "tmpfs", NO_SUID | NO_DEVICES, "size=1m,mode=755")
    shown = {path: path for path in (*SYSTEM, *DEVICES, stdlib) if os.path.exists(path)}
    shown |= {path: f"{folder}/{os.path.basename(path)}" for path in packages}
    for source, target in shown.items():
        _show(source, point + target)
    hidden = [f"{stdlib}/{name}" for name in HIDDEN] + [DEBIAN]
    for path in hidden:
        if os.path.isdir(point + path):
            mount("tmpfs", point + path, "tmpfs", READ_ONLY | NO_SUID | NO_DEVICES, "size=4k,mode=755")
    os.mkdir(f"{point}/tmp")
    os.symlink("/tmp", f"{point}/dev/shm")  # semaphores of multiprocessing
    os.chdir(point)
    if library.syscall(PIVOT_ROOT[os.uname().machine], b".", b"."):
        raise OSError(ctypes.get_errno(), f"pivot_root: {os.strerror(ctypes.get_errno())}")
    call("umount2", b".", DETACH)
    os.chdir("/")
    mount("tmpfs", "/", None, REMOUNT | READ_ONLY | NO_SUID | NO_DEVICES, "size=1m,mode=755")


def _show(source: str, target: str) -> None:
    """Bind a file or folder with what is mounted below it, read-only."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    elif not os.path.exists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        open(target, "w").close()
    mount(source, target, None, BIND | RECURSIVE)
    device = 0 if source in DEVICES else NO_DEVICES
    with open("/proc/self/mountinfo", "rb") as file:
        points = [os.fsdecode(OCTAL.sub(lambda code: bytes([int(code[1], 8)]), line.split()[4])) for line in file]
    for point in points:
        if point == target or point.startswith(f"{target}/"):
            kept = os.statvfs(point).f_flag & (NO_SUID | NO_DEVICES | NO_EXEC)  # a user may not take these away
            mount("none", point, None, REMOUNT | BIND | READ_ONLY | NO_SUID | device | kept)


def drop_capabilities() -> None:
    """Drop all rights of root, also those that a program which is executed would get."""
    for number in range(64):
        library.prctl(DROP_BOUND, number, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3
    call("capset", header, (ctypes.c_uint32 * 6)())
    call("prctl", NO_NEW_PRIVILEGES, 1, 0, 0, 0)


def landlock_version() -> int:
    """The kernel's version of Landlock; 0 if it has none."""
    return max(0, int(library.syscall(LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1)))


def everything() -> int:
    """All rights that the kernel knows."""
    return ALL | sum(right for since, right in SINCE.items() if landlock_version() >= since)


def rules(paths: Iterable[tuple[str | int, int]]) -> int:
    """A descriptor of a set of rules: no right of files but the given ones, each for all below a path or descriptor.
    OSError: the kernel has no Landlock, or a path is not there."""
    rights = everything()
    descriptor = _landlock(LANDLOCK_CREATE, ctypes.byref(ctypes.c_uint64(rights)), ctypes.c_size_t(8), 0)
    for path, allowed in paths:
        file = os.open(path, os.O_PATH | os.O_CLOEXEC) if isinstance(path, str) else path
        allowed &= rights if os.path.isdir(file) else rights & OF_FILES
        rule = allowed.to_bytes(8, "little") + file.to_bytes(4, "little")  # packed
        _landlock(LANDLOCK_ADD, descriptor, 1, ctypes.c_char_p(rule), 0)  # LANDLOCK_RULE_PATH_BENEATH
        if isinstance(path, str):
            os.close(file)
    return descriptor


def restrict(descriptor: int) -> None:
    """Restrict this process, which must have `no_new_privs`, to a set of rules, beside those that it has already."""
    _landlock(LANDLOCK_RESTRICT, descriptor, 0)


def _landlock(number: int, *arguments: object) -> int:
    result: int = library.syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"Landlock: {os.strerror(ctypes.get_errno())}")
    return result
