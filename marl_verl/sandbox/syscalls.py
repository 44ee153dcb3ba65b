"""A seccomp filter: system calls with which a program could reach other processes, the network or the kernel.

In tier `isolated` it is one barrier of several. In `limits`, where the program has no namespaces of its own, it alone
keeps the program from sending signals, opening sockets and starting processes. Standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from marl_verl.sandbox.namespaces import call

# name -> number on (x86_64, aarch64)
DENIED = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "socket": (41, 198),
    "io_uring_setup": (425, 425),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsmount": (432, 432),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "personality": (135, 92),
    "setpriority": (141, 140),
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "ioprio_set": (251, 30),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
}
PROCESSES: dict[str, tuple[int, int | None]] = {
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
    "fork": (57, None),
    "vfork": (58, None),
}
COMMANDS = {  # system call -> values of its second argument that would send signals, or type into a terminal
    "fcntl": ((72, 25), (8, 10, 15)),  # F_SETOWN, F_SETSIG, F_SETOWN_EX
    "ioctl": ((16, 29), (0x8901, 0x8902, 0x5412)),  # FIOSETOWN, SIOCSPGRP, TIOCSTI
}
CLONE, CLONE3, PRLIMIT = (56, 220), (435, 435), (302, 261)
NEW_NAMESPACES, THREAD = 0x7E020000, 0x10000  # CLONE_NEW*, CLONE_THREAD
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column of the tables, AUDIT_ARCH_*

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # BPF instructions
ALLOW, KILL, ERROR = 0x7FFF0000, 0x80000000, 0x00050000
NUMBER, ARCHITECTURE, FIRST_ARGUMENT, SECOND_ARGUMENT = 0, 4, 16, 24  # in struct seccomp_data


def install(processes: bool) -> None:
    """Install the filter in this process, for good, and in the processes that it starts.

    Args:
        processes: whether the program may start processes and send signals (in a PID namespace of its own).

    Raises:
        OSError: the kernel forbids it.
    """
    column, architecture = MACHINES[os.uname().machine]
    names: dict[str, tuple[int, int | None]] = {**DENIED, **({} if processes else PROCESSES)}
    lines = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, architecture), (RETURN, 0, 0, KILL), (LOAD, 0, 0, NUMBER)]
    lines += [(AT_LEAST, 0, 1, 0x40000000), (RETURN, 0, 0, KILL)]  # the x32 numbers of the same calls
    for number in (numbers[column] for numbers in names.values()):
        if number is not None:
            lines += [(EQUAL, 0, 1, number), (RETURN, 0, 0, ERROR | errno.EPERM)]
    for numbers, denied in COMMANDS.values():
        lines += [(EQUAL, 0, 2 + 2 * len(denied), numbers[column]), (LOAD, 0, 0, SECOND_ARGUMENT)]
        for value in denied:
            lines += [(EQUAL, 0, 1, value), (RETURN, 0, 0, ERROR | errno.EPERM)]
        lines += [(RETURN, 0, 0, ALLOW)]
    lines += [(EQUAL, 0, 1, CLONE3[column]), (RETURN, 0, 0, ERROR | errno.ENOSYS)]  # the C library then uses clone
    lines += [(EQUAL, 0, 5, CLONE[column]), (LOAD, 0, 0, FIRST_ARGUMENT), (ANY_BIT, 1, 0, NEW_NAMESPACES)]
    lines += [(ANY_BIT, 1, 0, 0xFFFFFFFF if processes else THREAD)]  # in `limits`, threads only
    lines += [(RETURN, 0, 0, ERROR | errno.EPERM), (RETURN, 0, 0, ALLOW)]
    lines += [(EQUAL, 0, 4, PRLIMIT[column]), (LOAD, 0, 0, FIRST_ARGUMENT), (EQUAL, 1, 0, 0)]  # of other processes
    lines += [(RETURN, 0, 0, ERROR | errno.EPERM), (RETURN, 0, 0, ALLOW)]
    lines += [(RETURN, 0, 0, ALLOW)]
    program = b"".join(struct.pack("HBBI", *line) for line in lines)
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(lines), ctypes.addressof(code))
    call("prctl", 22, 2, ctypes.c_char_p(header), 0, 0)  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
