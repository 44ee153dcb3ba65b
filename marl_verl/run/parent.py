"""The trainer's process and the command line that started it: the trainer ends when the command line has ended."""

import os
import signal
import subprocess
import sys
import threading
import time
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NoReturn

from marl_verl.config.hardware import RUN_VARIABLE
from marl_verl.events import SCRATCH_VARIABLE
from marl_verl.files import SAFE_PATH
from marl_verl.run.checkpoint.folders import complete
from marl_verl.run.cleanup import RunResources
from marl_verl.run.run_dir import REQUEST


class Parent:
    """The process that started the trainer, unless the trainer was started by hand, without a scratch folder."""

    def __init__(self) -> None:
        self.scratch = os.environ.get(SCRATCH_VARIABLE)
        self._pid = RunResources.read(Path(self.scratch)).command.pid if self.scratch else os.getppid()

    def follow(self) -> None:
        """Make SIGTERM interrupt the trainer as Ctrl-C does, and end the trainer when the parent ends."""
        signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
        if self.scratch:
            threading.Thread(target=self._wait, name="parent", daemon=True).start()

    def gone(self) -> bool:
        return self.scratch is not None and os.getppid() != self._pid

    def leave(self, code: int) -> NoReturn:
        """End this process immediately, even if other threads are blocked.

        If the parent is gone, start the cleanup in a new process, because it also ends this process.
        """
        if self.scratch and self.gone():
            print("the command line has ended: stopping the run and removing its leftovers", file=sys.stderr)
            command = [sys.executable, "-m", "marl_verl.run.cleanup", self.scratch]
            free = {name: value for name, value in os.environ.items() if name not in (RUN_VARIABLE, "TMPDIR")}
            subprocess.Popen(command, env=free, cwd="/", stdin=subprocess.DEVNULL, start_new_session=True)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def _wait(self) -> None:
        while not self.gone():
            time.sleep(0.5)
        self.leave(1)


def how_to_continue(folder: Path) -> str:
    """The last sentence of an error message: how to continue."""
    if (folder / REQUEST).is_file():
        return "Run the evaluation again"
    if complete(folder / "checkpoints"):
        return f"Continue with: marl-verl train --resume {folder}"
    return "No checkpoint was saved yet: start a new run"


def use_installed_verl() -> None:
    """Search the working directory last if it has another verl than the installed one, and not at all in children."""
    here = Path.cwd()
    if not (here / "verl" / "__init__.py").is_file():
        return
    elsewhere = [path for path in sys.path if _folder(path) != here]
    if PathFinder.find_spec("verl", elsewhere) is None:
        return  # this checkout is the installed one
    sys.path[:] = [*elsewhere, str(here)]
    os.environ[SAFE_PATH] = "1"
    if paths := os.environ.get("PYTHONPATH"):
        os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths.split(os.pathsep) if _folder(path) != here)


def _folder(path: str) -> Path:
    return Path(path or ".").resolve()
