"""Run checks one after the other, each in a process with a time limit, and collect their outcomes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from marl_verl.run.cleanup import cleanup_abandoned
from marl_verl.run.progress import Display
from marl_verl.run.supervisor import prctl
from marl_verl.run.terminal import harmless
from marl_verl_diagnose.selftest import Check, Outcome, Place

PATIENCE = 60.0  # seconds between SIGTERM, after which a run ends its processes, and SIGKILL
LINES = 40  # of a failed check's log


def run_all(checks: Sequence[Check], place: Place, display: Display) -> Iterator[Outcome]:
    """Yield the outcome of each check when it ends. Ctrl-C ends the processes of the current check."""
    place.work.mkdir(parents=True)
    place.log("").parent.mkdir()
    for number, check in enumerate(checks, start=1):
        title = f"[{number}/{len(checks)}] {check.name}"
        display.note(f"{title} ...")
        try:
            outcome = run(check, place, display, title)
        finally:
            display.close()
        message = f": {outcome.message}" if outcome.message else ""
        display.print(harmless(f"{title}: {outcome.state} in {outcome.seconds:.0f} s{message}"))
        yield outcome


def run(check: Check, place: Place, display: Display, title: str) -> Outcome:
    """Run one check to its end or its time limit."""
    log, result = place.log(check.name), place.work / f"{check.name}.json"
    command = [sys.executable, "-m", "marl_verl_diagnose.selftest.child", check.target, check.name]
    begun = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, str(place.folder), str(place.gpus)],
            env={**os.environ, "PYTHONUNBUFFERED": "1"},  # the log shows how far the check has come
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            process_group=0,  # Ctrl-C reaches only this process, which ends the check
            preexec_fn=partial(prctl, 1, signal.SIGTERM),  # PR_SET_PDEATHSIG: if this process is killed
        )
        try:
            while process.poll() is None and time.monotonic() - begun < check.seconds:
                if display.console.is_terminal:
                    display.note(harmless(f"{title} ({time.monotonic() - begun:.0f} s): {_last(log, 1)[-1:]}"[:150]))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=1)
            timeout = process.poll() is None
        finally:
            _stop(process)
    outcome = Outcome(check.name, check.criterion, "failed", time.monotonic() - begun)
    if timeout:
        outcome.message = f"not finished after {check.seconds:.0f} s"
    elif result.is_file():
        found = json.loads(result.read_text(encoding="utf-8"))
        outcome.state, outcome.message, outcome.figures = found["state"], found["message"], found["figures"]
    else:
        outcome.message = f"its process ended with exit code {process.returncode}"
    if outcome.state == "failed":
        outcome.log = _last(log, LINES)
    return outcome


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a check's process if it runs, and the processes of its run."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(timeout=PATIENCE)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()
        process.wait()
        cleanup_abandoned()


def _last(log: Path, count: int) -> list[str]:
    """The last lines of a log."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 20_000))
        return file.read().decode(errors="replace").splitlines()[-count:]
