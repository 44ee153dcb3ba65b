"""Checks for `test_selftest.py`. Each runs in a process, which starts fast because this module imports little."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from marl_verl_diagnose.selftest import Check, Figures, Place, SkippedError, require

from marl_verl.errors import RunError


def made(*names: str, seconds: float = 60) -> tuple[Check, ...]:
    return tuple(Check(name, f"{name} well", f"{__name__}:{name}", seconds) for name in names)


def passes(place: Place, figures: Figures) -> None:
    figures["tokens per second"], figures["gpus"] = 12.3456789, place.gpus


def fails(place: Place, figures: Figures) -> None:
    figures["difference"] = [0.01, 0.3]
    print("\n".join(f"line {number}" for number in range(100)))
    require(False, "differs by 0.3")


def raises(place: Place, figures: Figures) -> None:
    raise ValueError("no such thing")


def run_fails(place: Place, figures: Figures) -> None:
    log = place.work / "train.log"
    log.write_text("the reason is here\n")
    raise RunError("the trainer was killed", log, mistake=False)


def skips(place: Place, figures: Figures) -> None:
    raise SkippedError("needs a GPU")


def dies(place: Place, figures: Figures) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hangs(place: Place, figures: Figures) -> None:
    """As a run: it has a process, which it ends on Ctrl-C."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        (place.work / "hanging.pid").write_text(str(process.pid))
        try:
            process.wait()
        finally:
            process.kill()
