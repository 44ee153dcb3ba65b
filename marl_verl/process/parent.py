"""The trainer ends with the command line that started it, also when that is killed.

The command line cleans up after every end of the trainer. When it is gone, a new process does
(`python -m marl_verl.process.cleanup`): the trainer would not outlive the end of its own Ray session.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

from marl_verl.platforms.active import RUN_VARIABLE
from marl_verl.process.cleanup import SCRATCH_VARIABLE, RunResources

PERIOD = 0.5  # seconds


class Parent:
    """The process that started the trainer. A trainer started by hand, without a scratch folder, follows none."""

    def __init__(self) -> None:
        self.scratch = os.environ.get(SCRATCH_VARIABLE)
        self._pid = RunResources.read(Path(self.scratch)).command.pid if self.scratch else os.getppid()

    def follow(self) -> None:
        """From here on: SIGTERM interrupts the trainer as Ctrl-C does, and the end of the parent ends it."""
        signal.signal(signal.SIGTERM, self._terminated)
        if self.scratch:
            threading.Thread(target=self._wait, name="parent", daemon=True).start()

    def gone(self) -> bool:
        """Whether the trainer is an orphan."""
        return self.scratch is not None and os.getppid() != self._pid

    def leave(self, code: int) -> NoReturn:
        """End this process at once, whatever its other threads wait for; an orphan starts the cleanup first."""
        if self.gone():
            print("the command line is gone: the run ends, and what is left of it is removed", file=sys.stderr)
            assert self.scratch is not None
            free = {name: value for name, value in os.environ.items() if name not in (RUN_VARIABLE, "TMPDIR")}
            subprocess.Popen(
                [sys.executable, "-m", "marl_verl.process.cleanup", self.scratch],
                env=free,
                cwd="/",
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        """The kernel sends SIGTERM when the command line is killed (Linux)."""
        if self.gone():
            self.leave(1)
        signal.raise_signal(signal.SIGINT)

    def _wait(self) -> None:
        """The main thread may be waiting for something that never comes."""
        while not self.gone():
            time.sleep(PERIOD)
        self.leave(1)
