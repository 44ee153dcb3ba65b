"""Files of a run directory: read only regular files of bounded size, and no links.

A run directory may come from someone else. A link would lead its readers to other files, a FIFO would block them, and a
device has no end.
"""

import json
import os
import stat
from pathlib import Path
from typing import IO, Any

from marl_verl.errors import MarlError, user_error

SAFE_PATH = "PYTHONSAFEPATH"  # with this variable Python does not search the working directory, nor that of a script
GIB = 1 << 30
MOST = 2 * GIB  # bytes of a file, also after decompression: larger than any step that a run stores
MOST_DOCUMENT = 256 << 20  # bytes of a file that is parsed as a whole: configs, settings and lists of files
CHUNK = 4 << 20
TRACKERS = ("tensorboard", "wandb", "swanlab", "trackio")
"""Folders of a run directory that trackers write (W&B also links), and nothing here reads."""
TEXTS = (".json", ".jsonl", ".yaml", ".py", ".gz")  # endings of the files that are read as a whole


def check_run_directory(folder: Path) -> None:
    """MarlError for a link, an irregular file or too large a text below a run directory, which may be a link."""
    for path, names, files in os.walk(folder):
        if Path(path) == folder:
            names[:] = [name for name in names if name not in TRACKERS]
        for name in (*names, *files):
            file = Path(path, name)
            try:
                status = file.lstat()
            except FileNotFoundError:  # removed meanwhile
                continue
            if stat.S_ISLNK(status.st_mode):
                raise MarlError(f"run directory '{folder}' contains a link, '{file}': replace it by a copy")
            if not stat.S_ISDIR(status.st_mode):
                _check(file, status, MOST if name.endswith(TEXTS) else status.st_size)


def _check(path: Path, status: os.stat_result, most: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise MarlError(f"'{path}' is not a regular file")
    if status.st_size > most:
        raise too_large(f"'{path}'", most)


def read_bytes(path: Path, most: int = MOST, follow: bool = False) -> bytes:
    """The content of a regular file of at most `most` bytes (else MarlError). `follow`: the path itself may be a link,
    which is an OSError otherwise."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    try:
        _check(path, os.fstat(descriptor), most)
        with open(descriptor, "rb", closefd=False) as file:
            return read_bounded(file, f"'{path}'", most)
    finally:
        os.close(descriptor)


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
    with user_error(f"'{path}' cannot be read", OSError, UnicodeDecodeError):
        return read_bytes(path, most).decode()


def read_json(path: Path) -> Any:
    """The value in a JSON file. MarlError if it cannot be read, or is damaged."""
    with user_error(f"'{path}' is damaged", ValueError, RecursionError):
        return json.loads(read_text(path, MOST_DOCUMENT))


def write_json(path: Path, value: Any, default: Any = None) -> None:
    """Write a JSON file, and its folder; `default` is that of `json.dumps`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, (json.dumps(value, indent=1, default=default) + "\n").encode())


def replace_file(path: Path, content: bytes) -> None:
    """Write a file as a whole: a kill or a full disk leaves what it had before."""
    writing = path.with_name(f".writing-{path.name}")
    writing.write_bytes(content)
    writing.replace(path)


def too_large(source: str, most: int) -> MarlError:
    """The error for a file with more than `most` bytes."""
    size = f"{most / GIB:g} GiB" if most >= GIB else f"{most / (1 << 20):g} MiB"
    return MarlError(f"{source} is too large: it has more than {size}")
