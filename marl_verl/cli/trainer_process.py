"""The trainer in a process of its own: its events are shown, its output is logged, and nothing of it outlives us."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

from marl_verl.cli.progress import Display
from marl_verl.platforms.active import HARDWARE_VARIABLE, RUN_VARIABLE, has_accelerator
from marl_verl.rollout.servers import POLICIES_VARIABLE
from marl_verl.trainer.run_dir import EVENTS_VARIABLE

PATIENCE = 20.0  # seconds between asking the trainer to stop and killing it
SESSION_VARIABLE = "MARL_VERL_SCRATCH"


class TrainerProcess:
    """Starts the trainer for a run directory and stays until everything it started is gone.

    Args:
        folder: the run directory.
        policies: names, in the order of their replica ranks.
        debug: print the log's last lines after an error.
        module: what to run; takes the run directory as its argument.
    """

    def __init__(
        self, folder: Path, policies: list[str], debug: bool = False, module: str = "marl_verl.trainer.run"
    ) -> None:
        self.folder, self.debug, self.module = folder, debug, module
        self.log = folder / "train.log"
        self.run_id = uuid.uuid4().hex
        # short, because sockets stand below it
        self.scratch = tempfile.mkdtemp(prefix="marl-")
        self.variables = {
            RUN_VARIABLE: self.run_id,
            POLICIES_VARIABLE: json.dumps(policies),
            HARDWARE_VARIABLE: "gpu" if has_accelerator() else "cpu",
            SESSION_VARIABLE: self.scratch,
            "TMPDIR": self.scratch,
            **_environment(),
        }
        self.code = 1
        # a process that is killed leaves its shared memory behind, and semaphores that nobody holds any more
        self.shared_memory: set[Path] = set()
        self.semaphores = _semaphores()
        self.others = {process.pid for process in psutil.Process().children(recursive=True)}
        self.timing: dict[str, Any] = {"phases": {}}

    def run(self, display: Display, begun: float) -> int:
        """Run to the end. Ctrl-C and SIGTERM stop the trainer and everything below it. Returns the exit code."""
        self.timing["begun"] = begun
        _adopt_orphans()
        reading, writing = os.pipe()
        previous = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
        try:
            with self.log.open("ab") as log:
                process = subprocess.Popen(
                    [sys.executable, "-m", self.module, str(self.folder.resolve())],
                    env={**os.environ, **self.variables, EVENTS_VARIABLE: str(writing)},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(writing,),
                    start_new_session=True,
                    preexec_fn=_die_with_parent,
                )
            os.close(writing)
            try:
                self._follow(reading, display)
                self.code = process.wait()
            except KeyboardInterrupt:
                display.note("stopping: the trainer, its servers and Ray")
                self._stop(process)
                self.code = 130
            return self._explain(display)
        finally:
            display.close()
            self._sweep()
            shutil.rmtree(self.scratch, ignore_errors=True)
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _follow(self, reading: int, display: Display) -> None:
        self.error: dict[str, Any] | None = None
        with os.fdopen(reading) as events:
            for line in events:
                event = json.loads(line)
                self._time(event)
                if event["event"] == "error":
                    self.error = event
                display.event(event)

    def _time(self, event: dict[str, Any]) -> None:
        """Seconds since the command for each phase, up to the end of the first step."""
        seconds = time.time() - self.timing["begun"]
        if event["event"] == "phase":
            self.timing["phases"][event["name"]] = seconds
        elif event["event"] == "started":
            self.timing["policies"] = event["seconds"]
            self.timing["phases"]["policies started"] = seconds
            self.shared_memory |= _mapped(self._processes())
        elif event["event"] == "step" and "seconds_to_first_step" not in self.timing:
            self.timing["seconds_to_first_step"] = seconds
        else:
            return
        new = self.folder / ".timing.json"
        new.write_text(json.dumps(self.timing))
        new.replace(self.folder / "timing.json")

    def _explain(self, display: Display) -> int:
        if self.code == 0:
            return 0
        if self.code == 130:
            saved = list((self.folder / "checkpoints").glob("step_*"))
            told = f"; continue with: marl-verl train --resume {self.folder}" if saved else " before a checkpoint"
            display.print(f"interrupted{told}")
            return 130
        error = self.error or {"message": f"the trainer ended with code {self.code}", "expected": False}
        if self.debug:
            display.print("\n".join(self.log.read_text(errors="replace").splitlines()[-60:]))
        display.error(f"marl-verl: {error['message']} (log: {self.log})")
        return 2 if error["expected"] else 1

    def _stop(self, process: subprocess.Popen) -> None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=PATIENCE)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            process.kill()
            process.wait()

    def _sweep(self) -> None:
        """End every process that carries this run's id, wherever it went in the process tree.

        Python's resource trackers come last: when their process is gone they remove its shared memory, and end.
        """
        self.shared_memory |= _mapped(self._processes())
        for end, trackers in (("terminate", False), ("kill", False), ("wait", True), ("kill", True)):
            left = [process for process in self._processes() if trackers or not _is_tracker(process)]
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    if end != "wait":
                        getattr(process, end)()
            psutil.wait_procs(left, timeout=3)
        for path in self.shared_memory | (_semaphores() - self.semaphores - _mapped(psutil.process_iter())):
            path.unlink(missing_ok=True)

    def _processes(self) -> list[psutil.Process]:
        """What carries the run's id, and our descendants: a process that sets its title hides its environment."""
        found = {process for process in psutil.Process().children(recursive=True) if process.pid not in self.others}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.pid != os.getpid() and process.environ().get(RUN_VARIABLE) == self.run_id:
                    found.add(process)
        return [process for process in found if _alive(process)]


def _semaphores() -> set[Path]:
    """Python's named semaphores on this machine (Linux; elsewhere none)."""
    return set(Path("/dev/shm").glob("sem.mp-*"))


def _mapped(processes: Iterable[psutil.Process]) -> set[Path]:
    """The shared memory that processes hold."""
    found: set[Path] = set()
    for process in processes:
        with contextlib.suppress(OSError):
            maps = Path(f"/proc/{process.pid}/maps").read_text()
            found |= {Path(word) for word in maps.split() if word.startswith("/dev/shm/")}
    return found


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _is_tracker(process: psutil.Process) -> bool:
    try:
        return any("multiprocessing.resource_tracker" in word for word in process.cmdline())
    except psutil.Error:
        return False


def _environment() -> dict[str, str]:
    """Variables of every process of the run; what the user has set stays."""
    variables = {
        "HYDRA_FULL_ERROR": "1",
        "PYTHONUNBUFFERED": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if not has_accelerator():
        variables.update(
            {
                # several processes share few cores: a thread each
                "OMP_NUM_THREADS": "1",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "VLLM_CPU_KVCACHE_SPACE": "1",
                # with "1", vLLM's CPU platform overrules distributed_executor_backend=uni: one more process a server
                "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
                # tiny models: compiling costs more than it saves, and needs a C++ compiler
                "TORCHDYNAMO_DISABLE": "1",
                # Ray would start a worker for every logical CPU
                "RAY_prestart_worker_first_driver": "0",
            }
        )
    return {name: value for name, value in variables.items() if name not in os.environ}


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, so that the sweep finds them (on Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


def _die_with_parent() -> None:
    """The kernel ends the trainer with SIGTERM if the command line is killed (Linux; elsewhere nothing)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)
