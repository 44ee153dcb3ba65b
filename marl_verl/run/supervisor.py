"""The work of a run: in a trainer process, which is shown, logged and cleaned up after, or in this process."""

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from marl_verl.config.hardware import HARDWARE_VARIABLE, POLICIES_VARIABLE, RUN_VARIABLE, on_gpu
from marl_verl.config.stored import is_local, team_of
from marl_verl.errors import RunError
from marl_verl.events import EVENTS_VARIABLE, SCRATCH_VARIABLE
from marl_verl.extensions import extension
from marl_verl.files import write_json
from marl_verl.run.cleanup import Process, RunResources, abandoned
from marl_verl.run.progress import Display, Event
from marl_verl.run.run_dir import how_to_continue
from marl_verl.run.terminal import termination_as_interrupt

PATIENCE = 20.0  # seconds between SIGINT to the trainer and SIGKILL
PERIOD = 1.0  # seconds between two checks whether the trainer still runs


def start(work: str, folder: Path, config: Any, display: Display, lock: int | None, log: Path | None = None) -> None:
    """Do the work, "module:function", and show its progress. The function takes the folder, and the module is also a
    program that does so. RunError if it fails; KeyboardInterrupt with the message that was printed."""
    policies, gpu, log = list(team_of(config).policies), on_gpu(config), log or folder / "train.log"
    if is_local(config):
        extension("backend", "local").run_here(work, folder, log, gpu, display)
        return
    TrainerProcess(folder, policies, work.partition(":")[0], log, lock, gpu).run(display)


class RunEvents:
    """Shows a run's events, and keeps what is needed at its end; timing.json: when its phases began, in seconds."""

    def __init__(self, folder: Path, display: Display, backend: str) -> None:
        self.folder, self.display = folder, display
        self.timing: dict[str, Any] = {"phases": {}, "backend": backend, "begun": display.begun}
        self.error: Event | None = None  # the last one
        self.activity = "while starting"  # then e.g. "while updating in step 12"

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Show the run in this context, in which SIGTERM and SIGHUP act as Ctrl-C."""
        with termination_as_interrupt():
            try:
                yield
            except KeyboardInterrupt as error:
                message = f"interrupted. {how_to_continue(self.folder)}"
                self.display.print(message)
                raise KeyboardInterrupt(message) from error
            finally:
                self.display.close()

    def handle(self, event: Event) -> None:
        """Show an event."""
        kind, seconds = event["event"], time.time() - self.display.begun
        if kind == "error":
            self.error = event
        elif kind == "doing":
            self.activity = event["activity"]
        elif kind in ("phase", "started", "step"):
            if kind == "step":
                self.timing.setdefault("seconds_to_first_step", seconds)
            else:
                self.timing["phases"][event.get("name", "policies started")] = seconds
            write_json(self.folder / "timing.json", self.timing)
        self.display.event(event)


class TrainerProcess:
    """The trainer of a run directory, and every process that it starts."""

    def __init__(
        self,
        folder: Path,
        policies: list[str],  # in the order of their replica ranks
        module: str,  # to run, with the run directory as argument
        log: Path | None = None,  # default: train.log in the run directory
        lock: int | None = None,  # the run's `locked`, held by the trainer too: it may outlive a killed command line
        gpu: bool = False,
    ) -> None:
        self.folder, self.module, self.log, self.lock = folder, module, log or folder / "train.log", lock
        self.resources = RunResources.begin(uuid.uuid4().hex)
        self.variables = {
            RUN_VARIABLE: self.resources.run,
            POLICIES_VARIABLE: json.dumps(policies),
            HARDWARE_VARIABLE: "gpu" if gpu else "cpu",
            SCRATCH_VARIABLE: self.resources.scratch,
            "TMPDIR": self.resources.scratch,
            **_variables(gpu),
        }
        self.others = {process.pid for process in psutil.Process().children(recursive=True)}

    def run(self, display: Display) -> None:
        """Run to the end. Every exception stops the trainer and its processes."""
        events = RunEvents(self.folder, display, "verl")
        with events.shown():
            try:
                for killed in abandoned():
                    display.print(f"removed the leftovers of a killed run: {killed.cleanup()}")
                prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: orphans become its children, so that `_adopted` finds them
                self._run(events)
            finally:
                self.resources.cleanup(self._adopted())

    def _run(self, events: RunEvents) -> None:
        reading, process = self._start()
        try:
            self._follow(reading, process, events)
            code = process.wait()
        except BaseException:
            events.display.note("stopping the trainer, its servers and Ray ...")
            process.send_signal(signal.SIGINT)
            try:
                process.wait(timeout=PATIENCE)
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                process.kill()
                process.wait()
            raise
        if code:
            memory = ", perhaps out of memory" if -code == signal.SIGKILL else ""
            end = f"was killed (signal {-code}{memory})" if code < 0 else f"ended with exit code {code}"
            unexplained = f"the trainer {end} {events.activity}. {how_to_continue(self.folder)}"
            failure = events.error or {"message": unexplained, "expected": False}
            raise RunError(failure["message"], self.log, bool(failure["expected"]))

    def _start(self) -> tuple[int, subprocess.Popen[bytes]]:
        """Start the trainer. Returns the file descriptor of its events, and the process."""
        reading, writing = os.pipe()
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", self.module, str(self.folder.resolve())],
                env={**os.environ, **self.variables, EVENTS_VARIABLE: str(writing)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(writing,) if self.lock is None else (writing, self.lock),
                start_new_session=True,  # no preexec_fn: its fork in a thread may crash after a local run
            )
        self.resources.trainer = Process.of(process.pid)
        self.resources.write()
        os.close(writing)
        return reading, process

    def _follow(self, reading: int, process: subprocess.Popen[bytes], events: RunEvents) -> None:
        """Handle the trainer's events until it ends. Not until the pipe closes: other processes may hold it open."""
        rest = b""
        with open(reading, "rb", buffering=0) as pipe:
            while True:
                ended = process.poll() is not None
                if select.select([pipe], [], [], 0 if ended else PERIOD)[0]:
                    if not (new := pipe.read(1 << 16)):
                        return
                    *lines, rest = (rest + new).split(b"\n")
                    for line in lines:
                        event = json.loads(line)
                        events.handle(event)
                        if event["event"] == "started":
                            self.resources.note_shared_memory()
                elif ended:
                    return

    def _adopted(self) -> list[psutil.Process]:
        """Descendants that belong to the run: unlike those of a script, they are in another session."""
        adopted = []
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(ProcessLookupError):
                if process.pid not in self.others and os.getsid(process.pid) != os.getsid(0):
                    adopted.append(process)
        return adopted


def _variables(gpu: bool) -> dict[str, str]:
    """Environment variables of every process of the run, except those that the user has set."""
    variables = {
        "HYDRA_FULL_ERROR": "1",
        "PYTHONUNBUFFERED": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if gpu:  # FlashInfer's sampler, compiled when it is first used, does not return log-probs of what it draws
        variables["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
    else:
        variables |= {
            # one thread per process, because several processes share few cores
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            # with "1", vLLM's CPU platform ignores distributed_executor_backend=uni: one more process per server
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            # compiling a tiny model takes longer than it saves, and needs a C++ compiler
            "TORCHDYNAMO_DISABLE": "1",
            # Ray would start a worker for every logical CPU
            "RAY_prestart_worker_first_driver": "0",
        }
    return {name: value for name, value in variables.items() if name not in os.environ}


def prctl(option: int, value: int) -> None:
    """Set a process attribute on Linux; elsewhere do nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)
