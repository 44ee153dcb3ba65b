"""A seccomp filter: system calls with which a program could reach other processes, the network or the kernel.

In tier `isolated` it is one barrier of several. In `limits`, where the program has no namespaces of its own, it alone
keeps the program from sending signals, opening sockets and starting processes. Standard library only.
"""

import ctypes
import errno
import os
import struct
from collections.abc import Iterable

from marl_verl_sandbox.kernel import call

Numbers = tuple[int | None, int | None]  # of a system call on (x86_64, aarch64)

# execve would make the process dumpable, and there is nothing to execute in `isolated`. A program is one session and
# one process group: `template` slows it as a whole. inotify has a number for each user, which other programs need.
_DENIED = """
    ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271, process_madvise 440 440, pidfd_getfd 438 438,
    kcmp 312 272, socket 41 198, connect 42 203, bind 49 200, io_uring_setup 425 425, execve 59 221, execveat 322 281,
    setsid 112 157, setpgid 109 154, unshare 272 97, setns 308 268, mount 165 40, umount2 166 39, pivot_root 155 41,
    chroot 161 51, open_tree 428 428, move_mount 429 429, fsopen 430 430, fsmount 432 432, mount_setattr 442 442,
    open_by_handle_at 304 265, bpf 321 280, perf_event_open 298 241, userfaultfd 323 282, add_key 248 217,
    request_key 249 218, keyctl 250 219, personality 135 92, setpriority 141 140, sched_setaffinity 203 122,
    sched_setparam 142 118, sched_setscheduler 144 119, sched_setattr 314 274, ioprio_set 251 30,
    migrate_pages 256 238, move_pages 279 239, inotify_init 253 -, inotify_init1 294 26, fanotify_init 300 262,
    shmget 29 194, shmat 30 196, shmctl 31 195, msgget 68 186, msgsnd 69 189, msgrcv 70 188, msgctl 71 187,
    semget 64 190, semop 65 193, semctl 66 191, semtimedop 220 192, mq_open 240 180, mq_unlink 241 181
"""
# Denied where the program has no namespaces of its own. Landlock does not restrict what begins with `truncate`.
_ALONE = """
    rt_sigqueueinfo 129 138, rt_tgsigqueueinfo 297 240, pidfd_send_signal 424 424, fork 57 -, vfork 58 -,
    truncate 76 45, chmod 90 -, fchmod 91 52, fchmodat 268 53, fchmodat2 452 452, chown 92 -, fchown 93 55,
    lchown 94 -, fchownat 260 54, utime 132 -, utimes 235 -, futimesat 261 -, utimensat 280 88, setxattr 188 5,
    lsetxattr 189 6, fsetxattr 190 7, removexattr 197 14, lremovexattr 198 15, fremovexattr 199 16
"""


def _numbers(table: str) -> list[Numbers]:
    """The numbers of rows such as "vfork 58 -"."""
    rows = [row.split()[1:] for row in table.split(",")]
    return [(None if x86 == "-" else int(x86), None if arm == "-" else int(arm)) for x86, arm in rows]


DENIED, ALONE = _numbers(_DENIED), _numbers(_ALONE)
SIGNALS: list[Numbers] = [(62, 129), (200, 130), (234, 131)]  # kill, tkill, tgkill
NEWER = 463  # system calls from this number on, of Linux 6.13 and later, are not known here: there is no such call
CLONE, CLONE3, OPENAT2, PRLIMIT, SOCKETPAIR = (56, 220), (435, 435), (437, 437), (302, 261), (53, 199)
OPENS = (((2, None), 1), ((257, 56), 2))  # open, openat, and the place of their flags
COMMANDS = (  # numbers, argument, its values that are refused
    # F_SETOWN, F_SETSIG, F_SETOWN_EX: signals. F_SETLEASE: others could not open the file. F_SETPIPE_SZ, F_NOTIFY.
    ((72, 25), 1, (8, 10, 15, 1024, 1026, 1031)),
    ((16, 29), 1, (0x8901, 0x8902, 0x5412)),  # ioctl: FIOSETOWN, SIOCSPGRP, TIOCSTI
    ((157, 167), 0, (1, 4, 0x59616D61)),  # prctl: PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_PTRACER
)
NEW_NAMESPACES, THREAD = 0x7E020000, 0x10000  # CLONE_NEW*, CLONE_THREAD
UNIX, STREAM, PACKETS, KINDS = 1, 1, 5, 0xF  # AF_UNIX, SOCK_STREAM, SOCK_SEQPACKET; the mask of a socket's type
ACCESS, WRITE, READ_WRITE, TRUNCATE = 3, 1, 2, 0x200  # O_ACCMODE, O_WRONLY, O_RDWR, O_TRUNC
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column of the tables, AUDIT_ARCH_*

Line = tuple[int, int, int, int]
LOAD, AND, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06  # BPF instructions
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16  # in struct seccomp_data
KILL: Line = (RETURN, 0, 0, 0x80000000)
ALLOW: Line = (RETURN, 0, 0, 0x7FFF0000)
REFUSE: Line = (RETURN, 0, 0, 0x00050000 | errno.EPERM)
ABSENT: Line = (RETURN, 0, 0, 0x00050000 | errno.ENOSYS)  # the C library then uses an older call


def install(processes: bool) -> None:
    """Install the filter in this process, for good, and in the processes that it starts. `processes`: the program may
    start processes and send signals, in a PID namespace of its own. OSError: the kernel forbids it."""
    column, architecture = MACHINES[os.uname().machine]
    lines = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, architecture), KILL, (LOAD, 0, 0, NUMBER)]
    lines += [(AT_LEAST, 0, 1, 0x40000000), KILL, (AT_LEAST, 0, 1, NEWER), ABSENT]  # the first: x32 numbers

    def rule(numbers: Numbers, *body: Line) -> None:
        if (number := numbers[column]) is not None:
            lines.extend([(EQUAL, 0, len(body), number), *body])

    for numbers in [*DENIED, *([] if processes else ALONE)]:
        rule(numbers, REFUSE)
    for numbers, argument, values in COMMANDS:
        rule(numbers, _load(argument), *_any(values, REFUSE), ALLOW)
    if not processes:
        for numbers in SIGNALS:
            rule(numbers, _load(0), *_any([os.getpid()], ALLOW), REFUSE)
    for numbers, argument in OPENS:  # Landlock before Linux 6.2 lets a file be truncated that is opened to be read
        writing = [(AND, 0, 0, ACCESS), *_any([WRITE, READ_WRITE], ALLOW)]
        rule(numbers, _load(argument), *writing, *_any([ACCESS], REFUSE), _load(argument), *_bits(TRUNCATE), ALLOW)
    rule(CLONE3, ABSENT)
    rule(OPENAT2, ABSENT)
    threads = [] if processes else [(ANY_BIT, 1, 0, THREAD), REFUSE]
    rule(CLONE, _load(0), *_bits(NEW_NAMESPACES), *threads, ALLOW)
    rule(PRLIMIT, _load(0), *_any([0], ALLOW), REFUSE)  # 0: its own
    kinds = [_load(1), (AND, 0, 0, KINDS), *_any([STREAM, PACKETS], ALLOW)]  # a datagram may go elsewhere
    rule(SOCKETPAIR, _load(0), (EQUAL, 1, 0, UNIX), REFUSE, *kinds, REFUSE)
    lines.append(ALLOW)
    program = b"".join(struct.pack("HBBI", *line) for line in lines)
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(lines), ctypes.addressof(code))
    call("prctl", 22, 2, ctypes.c_char_p(header), 0, 0)  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER


def _load(argument: int) -> Line:
    return LOAD, 0, 0, ARGUMENTS + 8 * argument


def _any(values: Iterable[int], end: Line) -> list[Line]:
    """Return `end` if what was loaded is one of the values."""
    return [line for value in values for line in ((EQUAL, 0, 1, value), end)]


def _bits(bits: int) -> list[Line]:
    """Refuse if what was loaded has one of the bits."""
    return [(ANY_BIT, 0, 1, bits), REFUSE]
