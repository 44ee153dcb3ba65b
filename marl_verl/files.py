"""Read the files of a run directory: regular files of bounded size, and no links.

A run directory may come from someone else. A link would lead its readers to other files, a FIFO would block them, and a
device has no end.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import IO, Any

from marl_verl.errors import MarlError

GIB = 1 << 30
MOST = 2 * GIB
"""Bytes of a file, also after decompression: larger than any step that a run stores."""

CHUNK = 4 << 20
MOST_DOCUMENT = 256 << 20
"""Bytes of a file that is parsed as a whole: configs, settings and lists of files."""

TRACKERS = ("tensorboard", "wandb", "swanlab", "trackio")
"""Folders of a run directory that trackers write (W&B also links), and nothing here reads."""

TEXTS = (".json", ".jsonl", ".yaml", ".py", ".gz", ".zst")
"""Endings of the files that are read as a whole."""


def check_run_directory(folder: Path) -> None:
    """Raise MarlError if there is a link, a file that is not a regular one, or too large a text below a run directory.

    The directory itself may be a link.
    """
    waiting = [folder]
    while waiting:
        path = waiting.pop()
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    if not entry.is_dir(follow_symlinks=False):
                        _check_entry(entry, folder)
                    elif path != folder or entry.name not in TRACKERS:
                        waiting.append(Path(entry.path))
        except (FileNotFoundError, NotADirectoryError):  # removed meanwhile, or there is no run
            continue
        except OSError as error:
            raise MarlError(f"'{path}' cannot be read: {error.strerror}") from error


def _check_entry(entry: os.DirEntry[str], folder: Path) -> None:
    status = entry.stat(follow_symlinks=False)
    if stat.S_ISLNK(status.st_mode):
        raise MarlError(
            f"run directory '{folder}' contains a link, '{entry.path}'. Links in a run directory are not followed: "
            "replace it by a copy, or move the whole run directory."
        )
    if not stat.S_ISREG(status.st_mode):
        raise MarlError(f"run directory '{folder}' is damaged: '{entry.path}' is {_kind(status.st_mode)}")
    if status.st_size > MOST and entry.name.endswith(TEXTS):
        raise too_large(f"'{entry.path}'", MOST)


def read_bytes(path: Path, most: int = MOST, follow: bool = False) -> bytes:
    """The content of a regular file of at most `most` bytes. `follow`: the path itself may be a link.

    Raises:
        OSError: there is no such file, it is a folder, or it cannot be read.
        MarlError: it is a link, not a regular file, or too large.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        try:
            mode = os.stat(path, follow_symlinks=follow).st_mode
        except OSError:
            raise error from None
        if stat.S_ISREG(mode):
            raise
        raise MarlError(f"'{path}' is {_kind(mode)}, not a regular file") from error
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        mode = status.st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise MarlError(f"'{path}' is {_kind(mode)}, not a regular file")
        if status.st_size > most:
            raise too_large(f"'{path}'", most)
        return read_bounded(file, f"'{path}'", most)


def read_bounded(stream: IO[bytes], source: str, most: int = MOST) -> bytes:
    """The rest of a stream, of at most `most` bytes. MarlError if there are more."""
    parts, size = [], 0
    while part := stream.read(CHUNK):
        parts.append(part)
        size += len(part)
        if size > most:
            raise too_large(source, most)
    return b"".join(parts)


def read_text(path: Path, most: int = MOST) -> str:
    """The content of a UTF-8 file. MarlError if it cannot be read."""
    try:
        return read_bytes(path, most).decode()
    except OSError as error:
        raise MarlError(f"'{path}' cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise MarlError(f"'{path}' cannot be read: {error}") from error


def read_json(path: Path) -> Any:
    """The value in a JSON file. MarlError if it cannot be read, or is damaged."""
    try:
        return json.loads(read_text(path, MOST_DOCUMENT))
    except (ValueError, RecursionError) as error:
        raise MarlError(f"'{path}' is damaged: {error}") from error


def too_large(source: str, most: int) -> MarlError:
    """The error for a file with more than `most` bytes."""
    size = f"{most / GIB:g} GiB" if most >= GIB else f"{most / (1 << 20):g} MiB"
    return MarlError(f"{source} is too large: it has more than {size}")


def _kind(mode: int) -> str:
    kinds = {stat.S_IFLNK: "a link", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}
    return kinds.get(stat.S_IFMT(mode), "a device")
