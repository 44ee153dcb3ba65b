"""Checkpoint folders on disk: complete or absent, at whatever moment the process is killed.

A checkpoint is written beside its final name, flushed to the disk, and renamed. Names below `checkpoints/`:

    step_N             complete
    .writing-step_N    unfinished, or left by a kill
    .replaced-step_N   a complete one, while another of the same step takes its place
    .old-step_N        being removed

A rename is atomic. `team.json`, written last, lists every file with its size: `damage` finds later changes.
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

TEAM_FILE = "team.json"
WRITING, REPLACED, OLD = ".writing-", ".replaced-", ".old-"
HASHED = 1_000_000
"""Files below this many bytes are listed with their SHA-256 too; hashing larger ones would take longer than writing."""

FULL = (errno.ENOSPC, errno.EDQUOT)
FULL_WORDS = ("no space left on device", "disk quota exceeded")
NOTHING_LEFT = 1 << 20
"""Bytes: with less than that the disk is full. torch's writer fails there without saying why."""


def complete(root: Path) -> list[Path]:
    """The complete checkpoints below a folder, oldest first. Changes nothing."""
    found: dict[int, Path] = {}
    for prefix in ("", REPLACED):
        for path in root.glob(f"{prefix}step_*"):
            step = path.name.removeprefix(f"{prefix}step_")
            if step.isdigit() and (path / TEAM_FILE).is_file():
                found.setdefault(int(step), path)  # the one that was replaced counts until the new one is there
    return [found[step] for step in sorted(found)]


def step_of(folder: Path) -> int:
    """The step of a checkpoint that `complete` found."""
    return int(folder.name.rpartition("_")[2])


def read(folder: Path) -> dict[str, Any]:
    """What a checkpoint's team file says: `step`, `files`, `identity` and `plugins`. MarlError if it is unreadable."""
    try:
        team: dict[str, Any] = json.loads((folder / TEAM_FILE).read_text(encoding="utf-8"))
        team["step"] = int(team["step"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise MarlError(f"checkpoint '{folder}' is damaged: {TEAM_FILE} cannot be read ({error})") from error
    return team


def manifest(folder: Path) -> dict[str, dict[str, Any]]:
    """Path below the folder -> `size` in bytes, and `sha256` of a small one, of every file."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): _described(path) for path in paths}


def _described(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    return {"size": size} | ({"sha256": hashlib.sha256(path.read_bytes()).hexdigest()} if size < HASHED else {})


def damage(folder: Path, part: str = "") -> str | None:
    """What is wrong with the files whose path begins with `part`, as the end of an error message; None if nothing."""
    try:
        team = read(folder)
    except MarlError as error:
        return f"{TEAM_FILE} cannot be read ({error.__cause__})"
    if absent := sorted({"files", "identity", "plugins"} - team.keys()):
        return f"{TEAM_FILE} has no {', '.join(absent)}"
    for name, saved in team["files"].items():
        if not name.startswith(part):
            continue
        try:
            now = _described(folder / name)
        except OSError as error:
            missing = isinstance(error, FileNotFoundError | NotADirectoryError)
            return f"'{name}' is missing" if missing else f"'{name}' cannot be read ({error.strerror})"
        if now["size"] != saved["size"]:
            return f"'{name}' has {now['size']:,} bytes, {saved['size']:,} were written"
        if now.get("sha256") != saved.get("sha256"):
            return f"the content of '{name}' has changed since it was written"
    return None


def newest(run: Path) -> Path | None:
    """The newest complete checkpoint of a run directory; None where there is none. MarlError if it is damaged."""
    found = complete(run / "checkpoints")
    if not found or (why := damage(found[-1])) is None:
        return found[-1] if found else None
    folder = found[-1]
    advice = "none of the others is intact: start a new run"
    if intact := next((other for other in reversed(found) if damage(other) is None), None):
        advice = (
            f"the newest intact one is '{intact}': to continue from it, remove or rename '{folder}', then "
            f"marl-verl train --resume {run}"
        )
    raise MarlError(f"checkpoint '{folder}' is damaged: {why}; {advice}")


def commit(writing: Path, final: Path) -> None:
    """Give a written and flushed folder its final name; one that has the name already is replaced."""
    replaced = final.with_name(REPLACED + final.name)
    if final.exists():
        os.replace(final, replaced)
    os.replace(writing, final)
    _sync(final.parent)
    if replaced.exists():
        discard(replaced)


def discard(folder: Path) -> None:
    """Remove a checkpoint: its name goes first, so that half of one never counts."""
    old = folder.with_name(OLD + folder.name.removeprefix(REPLACED))
    if old.exists():
        shutil.rmtree(old)
    os.replace(folder, old)
    shutil.rmtree(old)


def tidy(root: Path) -> None:
    """Remove what a kill has left, and give a replaced checkpoint its name back where the new one did not come."""
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
    """Have everything below a folder on the disk, also what other processes wrote."""
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
    """Bytes of the files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob(pattern) if path.is_file())


def is_full(error: BaseException, folder: Path) -> bool:
    """Whether an error came from a full disk, here or in a worker, whose error Ray brings along."""
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
