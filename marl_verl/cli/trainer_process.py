"""The trainer in a process of its own: its events are shown, its output is logged, and nothing of it outlives us."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import psutil

from marl_verl.cli.progress import Display
from marl_verl.platforms.active import HARDWARE_VARIABLE, RUN_VARIABLE, has_accelerator
from marl_verl.rollout.servers import POLICIES_VARIABLE
from marl_verl.sweep import SCRATCH_VARIABLE, Belongings, sweep_abandoned
from marl_verl.trainer.run_dir import EVENTS_VARIABLE
from marl_verl.trainer.watch import go_on

PATIENCE = 20.0  # seconds between asking the trainer to stop and killing it
PERIOD = 1.0  # seconds between two looks at whether the trainer still runs


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
        self.belongings = Belongings.begin(uuid.uuid4().hex)
        self.variables = {
            RUN_VARIABLE: self.belongings.run,
            POLICIES_VARIABLE: json.dumps(policies),
            HARDWARE_VARIABLE: "gpu" if has_accelerator() else "cpu",
            SCRATCH_VARIABLE: self.belongings.scratch,
            "TMPDIR": self.belongings.scratch,
            **_environment(),
        }
        self.code = 1
        self.others = {process.pid for process in psutil.Process().children(recursive=True)}
        self.timing: dict[str, Any] = {"phases": {}}
        self.error: dict[str, Any] | None = None
        self.doing = "while starting"

    def run(self, display: Display, begun: float) -> int:
        """Run to the end. Ctrl-C and SIGTERM stop the trainer and everything below it. Returns the exit code."""
        self.timing["begun"] = begun
        for scratch in sweep_abandoned():
            display.print(f"removed what a killed run had left: {scratch}")
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
            self.belongings.started(process.pid)
            os.close(writing)
            try:
                self._follow(reading, process, display)
                self.code = process.wait()
            except KeyboardInterrupt:
                display.note("stopping: the trainer, its servers and Ray")
                self._stop(process)
                self.code = 130
            return self._explain(display)
        finally:
            display.close()
            self.belongings.sweep(self._adopted())
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _follow(self, reading: int, process: subprocess.Popen, display: Display) -> None:
        """Take the trainer's events until it has ended: what it started may hold its end of the pipe longer."""
        rest = b""
        with open(reading, "rb", buffering=0) as events:
            while True:
                ended = process.poll() is not None
                if select.select([events], [], [], 0 if ended else PERIOD)[0]:
                    if not (new := events.read(1 << 16)):
                        return
                    *lines, rest = (rest + new).split(b"\n")
                    for line in lines:
                        self._event(json.loads(line), display)
                elif ended:
                    return

    def _event(self, event: dict[str, Any], display: Display) -> None:
        self._time(event)
        if event["event"] == "error":
            self.error = event
        elif event["event"] == "doing":
            self.doing = event["told"]
        display.event(event)

    def _time(self, event: dict[str, Any]) -> None:
        """Seconds since the command for each phase, up to the end of the first step."""
        seconds = time.time() - self.timing["begun"]
        if event["event"] == "phase":
            self.timing["phases"][event["name"]] = seconds
        elif event["event"] == "started":
            self.timing["policies"] = event["seconds"]
            self.timing["phases"]["policies started"] = seconds
            self.belongings.note_shared_memory()
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
            display.print(f"interrupted: {go_on(self.folder)}")
            return 130
        error = self.error or {"message": self._unexplained(), "expected": False}
        if self.debug:
            display.print("\n".join(self.log.read_text(errors="replace").splitlines()[-60:]))
        display.error(f"marl-verl: {error['message']} (log: {self.log})")
        return 2 if error["expected"] else 1

    def _unexplained(self) -> str:
        """The end of a trainer that told nothing about it."""
        what = f"ended with code {self.code}"
        if self.code < 0:
            memory = ": perhaps out of memory" if -self.code == signal.SIGKILL else ""
            what = f"was killed (signal {-self.code}{memory})"
        return f"the trainer {what} {self.doing}: {go_on(self.folder)}"

    def _stop(self, process: subprocess.Popen) -> None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=PATIENCE)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            process.kill()
            process.wait()

    def _adopted(self) -> list[psutil.Process]:
        """Our descendants that were not there before: with `_adopt_orphans` all of the run's end up here."""
        return [process for process in psutil.Process().children(recursive=True) if process.pid not in self.others]


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
