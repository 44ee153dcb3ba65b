"""Checkpoint folders on disk: always complete or absent, even if the process is killed.

A checkpoint is written to a temporary folder, flushed to the disk, and renamed. Names below `checkpoints/`:

    step_N             complete
    .writing-step_N    incomplete: being written, or left by a killed process
    .replaced-step_N   complete, while a new checkpoint of the same step replaces it
    .old-step_N        being removed

A rename is atomic. `team.json`, written last, lists every file with its size; `damage` finds later changes.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from marl_verl.errors import MarlError
from marl_verl.files import MOST_DOCUMENT, read_bytes

TEAM_FILE = "team.json"
WRITING, REPLACED, OLD = ".writing-", ".replaced-", ".old-"
HASHED = 1_000_000
"""Files with fewer bytes are listed with their SHA-256; hashing larger ones would take longer than writing them."""

FULL = (errno.ENOSPC, errno.EDQUOT)
FULL_WORDS = ("no space left on device", "disk quota exceeded")
NOTHING_LEFT = 1 << 20
"""Bytes below which the disk counts as full, because torch's writer does not report the reason."""


def complete(root: Path) -> list[Path]:
    """The checkpoints below a folder that were completed, oldest first, also damaged ones. Changes nothing."""
    found: dict[int, Path] = {}
    for prefix in ("", REPLACED):
        for path in root.glob(f"{prefix}step_*"):
            step = path.name.removeprefix(f"{prefix}step_")
            if step.isdecimal() and path.is_dir():
                found.setdefault(int(step), path)  # the replaced one counts until the new one exists
    return [found[step] for step in sorted(found)]


def step_of(folder: Path) -> int:
    """The step of a checkpoint that `complete` found."""
    return int(folder.name.rpartition("_")[2])


def read(folder: Path) -> dict[str, Any]:
    """A checkpoint's team file: `step`, `files`, `fingerprint` and `plugins`. MarlError if it is unreadable."""
    try:
        team: dict[str, Any] = json.loads(read_bytes(folder / TEAM_FILE, MOST_DOCUMENT))
        team["step"] = int(team["step"])
    except (MarlError, OSError, ValueError, RecursionError, TypeError, KeyError) as error:
        raise MarlError(f"checkpoint '{folder}' is damaged: {TEAM_FILE} cannot be read ({error})") from error
    return team


def manifest(folder: Path) -> dict[str, dict[str, Any]]:
    """Relative path -> `size` in bytes and, for a small file, `sha256`, of every file in a folder."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): _described(path) for path in paths}


def _described(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    return {"size": size} | ({"sha256": hashlib.sha256(read_bytes(path)).hexdigest()} if size < HASHED else {})


def damage(folder: Path, part: str = "") -> str | None:
    """The end of an error message about a damaged file whose path begins with `part`; None if all are intact."""
    try:
        team = read(folder)
    except MarlError as error:
        return f"{TEAM_FILE} cannot be read ({error.__cause__})"
    if absent := [key for key in ("files", "fingerprint", "plugins") if not isinstance(team.get(key), dict)]:
        return f"{TEAM_FILE} has no {', '.join(absent)}"
    for name, saved in team["files"].items():
        if not name.startswith(part):
            continue
        try:
            now = _described(folder / name)
        except OSError as error:
            missing = isinstance(error, FileNotFoundError | NotADirectoryError)
            return f"'{name}' is missing" if missing else f"'{name}' cannot be read ({error.strerror})"
        except MarlError as error:
            return str(error)
        if not isinstance(saved, dict) or not isinstance(saved.get("size"), int):
            return f"{TEAM_FILE} has no size of '{name}'"
        if now["size"] != saved["size"]:
            return f"'{name}' has {now['size']:,} bytes instead of {saved['size']:,}"
        if now.get("sha256") != saved.get("sha256"):
            return f"the content of '{name}' has changed since it was written"
    return None


def newest(run: Path) -> Path | None:
    """The newest complete checkpoint of a run directory; None where there is none. MarlError if it is damaged."""
    found = complete(run / "checkpoints")
    if not found or (why := damage(found[-1])) is None:
        return found[-1] if found else None
    folder = found[-1]
    advice = "No other one is intact. Start a new run."
    if intact := next((other for other in reversed(found) if damage(other) is None), None):
        advice = (
            f"The newest intact one is '{intact}'. To continue from it, remove or rename '{folder}', then run "
            f"marl-verl train --resume {run}"
        )
    raise MarlError(f"checkpoint '{folder}' is damaged: {why}. {advice}")


def commit(writing: Path, final: Path) -> None:
    """Rename a written and flushed folder to its final name, replacing an existing checkpoint."""
    replaced = final.with_name(REPLACED + final.name)
    if final.exists():
        os.replace(final, replaced)
    os.replace(writing, final)
    _sync(final.parent)
    if replaced.exists():
        discard(replaced)


def discard(folder: Path) -> None:
    """Remove a checkpoint. It is renamed first, so that a partly removed one is never used."""
    old = folder.with_name(OLD + folder.name.removeprefix(REPLACED))
    if old.exists():
        shutil.rmtree(old)
    os.replace(folder, old)
    shutil.rmtree(old)


def tidy(root: Path) -> None:
    """Clean up after a killed process: remove leftovers, restore a replaced checkpoint if the new one is missing."""
    for path in sorted(root.glob(f"{REPLACED}*")):
        final = path.with_name(path.name.removeprefix(REPLACED))
        if final.exists():
            discard(path)
        else:
            os.replace(path, final)
    for prefix in (OLD, WRITING):
        for path in sorted(root.glob(f"{prefix}*")):
            shutil.rmtree(path)


def flush(folder: Path) -> None:
    """Flush all files below a folder to the disk, including those that other processes wrote."""
    for path, _, names in os.walk(folder, topdown=False):
        for name in names:
            _sync(Path(path, name))
        _sync(Path(path))
    _sync(folder.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def size(folder: Path, pattern: str = "*") -> int:
    """Total bytes of the files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob(pattern) if path.is_file())


def is_full(error: BaseException, folder: Path) -> bool:
    """Whether an error was caused by a full disk, in this process or in a Ray worker."""
    seen: list[BaseException] = []
    waiting: list[Any] = [error]
    while waiting:
        one = waiting.pop()
        if not isinstance(one, BaseException) or one in seen:
            continue
        seen.append(one)
        if getattr(one, "errno", None) in FULL or any(words in str(one).lower() for words in FULL_WORDS):
            return True
        waiting += [one.__cause__, one.__context__, getattr(one, "cause", None)]
    return shutil.disk_usage(folder).free < NOTHING_LEFT
