"""Run a command and watch its process tree: seconds and peak memory."""

import json
import os
import subprocess
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import psutil

MARK = "MARL_BENCH_RUN"


@dataclass
class Measured:
    """What was seen of one run. `peak_bytes`: proportional set size, a shared page once. `processes`: most at once."""

    seconds: float
    peak_bytes: int
    step_seconds: list[float] = field(default_factory=list)
    first_step: float = 0.0
    processes: int = 0


def measure(command: list[str], folder: Path, variables: dict[str, str] | None = None) -> Measured:
    """Run to the end; a failure shows the last of the output and raises."""
    mark = uuid.uuid4().hex
    begun, stop, peak = time.monotonic(), threading.Event(), [0, 0]
    watcher = threading.Thread(target=_watch, args=(mark, stop, peak))
    watcher.start()
    try:
        env = {**os.environ, **(variables or {}), MARK: mark}
        done = subprocess.run(
            command, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1200
        )
    finally:
        stop.set()
        watcher.join()
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        )
    return Measured(time.monotonic() - begun, peak[0], processes=peak[1])


def measure_run(command: list[str], run: Path, variables: dict[str, str] | None = None) -> Measured:
    """Measure a training run, with the times of its steps that its directory has."""
    seen = measure(command, run.parent, variables)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    seen.step_seconds = [line["seconds/step"] for line in lines if "seconds/step" in line]
    seen.first_step = json.loads((run / "timing.json").read_text())["seconds_to_first_step"]
    return seen


def _watch(mark: str, stop: threading.Event, peak: list[int]) -> None:
    while not stop.wait(2.0):
        total = processes = 0
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == mark:
                    total += process.memory_full_info().pss
                    processes += 1
            except psutil.Error:
                continue
        peak[:] = max(peak[0], total), max(peak[1], processes)
