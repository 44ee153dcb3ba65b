"""Checkpoint folders on disk: always complete or absent, even if the process is killed.

A checkpoint is written to a temporary folder, flushed to the disk, and renamed. Names below `checkpoints/`:

    step_N            complete
    .writing-step_N   incomplete: being written, or left by a killed process
    .old-step_N       being removed

A rename is atomic. `team.json`, written last, lists every file with its size; `intact` finds later changes.
"""

import hashlib
import logging
import os
import re
import shutil
import traceback
from pathlib import Path
from typing import Any

from marl_verl.errors import MarlError, user_error
from marl_verl.files import read_bytes, read_json

TEAM_FILE = "team.json"
WRITING, OLD = ".writing-", ".old-"
HASHED = 1_000_000  # files with fewer bytes are listed with their SHA-256; hashing larger ones takes too long

FULL = ("no space left on device", "disk quota exceeded")
NOTHING_LEFT = 1 << 20  # bytes below which the disk counts as full, because torch's writer does not report the reason


def complete(root: Path) -> list[Path]:
    """The checkpoints below a folder that were completed, oldest first, also damaged ones. Changes nothing."""
    folders = [path for path in root.glob("step_*") if path.name.removeprefix("step_").isdecimal() and path.is_dir()]
    return sorted(folders, key=step_of)


def step_of(folder: Path) -> int:
    """The step of a checkpoint that `complete` found."""
    return int(folder.name.rpartition("_")[2])


def read(folder: Path) -> dict[str, Any]:
    """A checkpoint's team file: `step`, `files`, `fingerprint` and `plugins`. MarlError if it is damaged."""
    team: Any = read_json(folder / TEAM_FILE)
    if not isinstance(team, dict) or not {"step", "files", "fingerprint", "plugins"} <= team.keys():
        raise MarlError(f"'{folder / TEAM_FILE}' is damaged: it lacks keys")
    return team


def manifest(folder: Path) -> dict[str, dict[str, Any]]:
    """Relative path -> `size` in bytes and, for a small file, `sha256`, of every file in a folder."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): _described(path) for path in paths}


def _described(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    return {"size": size} | ({"sha256": hashlib.sha256(read_bytes(path)).hexdigest()} if size < HASHED else {})


def choose(run: Path, step: int | None = None) -> Path:
    """The checkpoint of a step, or the newest one. MarlError if there is none."""
    checkpoints = {step_of(folder): folder for folder in complete(run / "checkpoints")}
    wanted = max(checkpoints, default=0) if step is None else step
    if wanted not in checkpoints:
        steps = f"steps with a checkpoint: {', '.join(map(str, checkpoints)) or 'none'}"
        raise MarlError(f"run '{run}' has no complete checkpoint{f' of step {step}' if step else ''} ({steps})")
    return checkpoints[wanted]


def intact(folder: Path, part: str = "") -> Path:
    """The checkpoint itself. MarlError if a file whose path begins with `part` is damaged."""
    advice = "choose another one with --step, or remove it to continue from an earlier one"
    with user_error(f"checkpoint '{folder}' is damaged ({advice})", MarlError, OSError):
        for name, saved in read(folder)["files"].items():
            if name.startswith(part) and (now := _described(folder / name)) != saved:
                sizes = f"{saved['size']:,} -> {now['size']:,} bytes"
                raise MarlError(f"'{name}' has changed since it was written ({sizes})")
    return folder


def commit(writing: Path, final: Path) -> None:
    """Rename a written and flushed folder to its final name.

    A resumed run repeats no step that has a checkpoint, but snapshots of past policies that were written after it.
    """
    if final.exists():
        discard(final)
    os.replace(writing, final)
    _sync(final.parent)


def discard(folder: Path) -> None:
    """Remove a checkpoint. It is renamed first, so that a partly removed one is never used."""
    old = folder.with_name(OLD + folder.name)
    if old.exists():
        shutil.rmtree(old)
    os.replace(folder, old)
    shutil.rmtree(old)


def tidy(root: Path) -> None:
    """Remove what a killed process left."""
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


def is_full(error: BaseException, folder: Path) -> bool:
    """Whether an error was caused by a full disk, in this process or in a Ray worker."""
    text = "".join(traceback.format_exception(error)).lower()  # also of the errors that caused it
    return any(words in text for words in FULL) or shutil.disk_usage(folder).free < NOTHING_LEFT


def load_pickle(path: Path) -> Any:
    """Load a file of `torch.save` with tensors on the CPU. MarlError if it is damaged or names functions.

    A pickle may call any function while it is loaded. `torch.load(weights_only=True)` refuses all but a short list, to
    which NumPy's arrays are added here. verl loads its own files with `weights_only=False`: first `check_pickles`.
    """
    import numpy as np
    import torch  # not at the top, because the command line imports the callers
    import torch.distributed.tensor

    # it warns about every sharded tensor that is loaded outside a process group
    logging.getLogger("torch.distributed.device_mesh").setLevel(logging.ERROR)
    arrays = [np.ndarray, np.dtype, *{type(np.dtype(code)) for code in np.typecodes["All"]}]
    makers = [example.__reduce__()[0] for example in (np.zeros(1), np.float64(0))]  # their module moved in NumPy 2
    with torch.serialization.safe_globals([*arrays, *makers]):
        try:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:
            refused = re.search(r"GLOBAL \S+", str(error)) or re.search(".*", str(error))
            advice = "Use another checkpoint; one that marl-verl wrote contains tensors, numbers and texts only."
            raise MarlError(f"'{path}' cannot be loaded safely: {refused and refused[0]}. {advice}") from error


def check_pickles(folder: Path) -> None:
    """Raise MarlError if loading any file of `torch.save` below a checkpoint could run code."""
    for path in sorted(folder.rglob("*.pt")):
        load_pickle(path)
