"""Crash detection: the trainer's process ends within seconds after the death of an actor or of the command line.

Ray does not report a dead server to a training worker that waits for it on a socket, nor to the driver that waits for
the worker. So `Watch` keeps a call pending at every actor, which fails as soon as the actor dies.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from marl_verl.checkpoint.folders import complete
from marl_verl.platforms.active import RUN_VARIABLE
from marl_verl.process.cleanup import SCRATCH_VARIABLE, RunResources
from marl_verl.process.run_dir import REQUEST, emit

PERIOD = 1.0
"""Seconds between two checks of the actors."""

QUEUE = ("TransferQueueController", "transfer_queue")
"""Name and namespace of TransferQueue's controller, of which a Ray session has one."""

PATIENCE = 15.0
"""Maximum seconds to wait, after an error from Ray, for an actor to be reported dead."""


class Phases:
    """The run's current activities and step, for error messages here and in the command line. Phases may overlap."""

    def __init__(self, step: Callable[[], int]) -> None:
        self._step = step
        self._active: list[str] = []
        self._lock = threading.Lock()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """`with phases("updating"): ...`. After an exception the phase stays active, as the one that failed."""
        self._change(self._active.append, name)
        yield
        self._change(self._active.remove, name)

    def describe(self) -> str:
        """E.g. "while updating in step 12", or "while validating, before the first step"."""
        doing, step = " and ".join(dict.fromkeys(self._active)) or "working", self._step()
        return f"while {doing}{f' in step {step}' if step else ', before the first step'}"

    def _change(self, change: Callable[[str], None], name: str) -> None:
        with self._lock:
            change(name)
            emit("doing", activity=self.describe())


class Watch:
    """Ends this process when one of the run's actors is dead.

    Args:
        actors: name in error messages -> Ray's handle.
        activity: returns the run's activity, e.g. `Phases.describe`.
        end: ends this process immediately with an exit code; the main thread may be blocked.
    """

    def __init__(
        self, actors: Mapping[str, Any], activity: Callable[[], str], folder: Path, end: Callable[[int], Any]
    ) -> None:
        self._actors, self._activity, self._folder, self._end = dict(actors), activity, folder, end
        self._calls: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, name="watch", daemon=True)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Watch during the context. If it raises because an actor died, the death is the reported error."""
        from ray.exceptions import RayError

        self._thread.start()
        try:
            yield
        except Exception as error:
            # Ray reports a dead actor as unavailable at first
            until = time.monotonic() + (PATIENCE if isinstance(error, RayError) else PERIOD)
            while (died := self._died(timeout=PERIOD)) is None and time.monotonic() < until:
                time.sleep(PERIOD / 10)
            if died is not None:
                traceback.print_exc()
                self._finish(died)
            raise
        finally:
            self._stopped.set()
            self._thread.join()

    def _died(self, timeout: float = 0.0) -> str | None:
        """The error message for the first dead actor, or None; waits `timeout` seconds for busy actors."""
        import ray

        with self._lock:
            for name, actor in self._actors.items():
                if name not in self._calls:
                    self._calls[name] = actor.__ray_call__.remote(is_healthy)
            calls = list(self._calls.values())
            answered, _ = ray.wait(calls, num_returns=len(calls), timeout=timeout)
            names = [name for name, call in self._calls.items() if call in answered]
            dead = next((name for name in names if not _alive(self._calls.pop(name))), None)
        if dead is None:
            return None
        what = f"the {dead} died {self._activity()} (killed or out of memory, see train.log)"
        return f"{what}. {how_to_continue(self._folder)}"

    def _look(self) -> None:
        while not self._stopped.wait(PERIOD):
            died = self._died()
            if died is not None and not self._stopped.is_set():  # a shutdown ends actors, too
                self._finish(died)
                return

    def _finish(self, died: str) -> None:
        print(f"marl-verl: {died}", file=sys.stderr)
        emit("error", message=died, expected=False)
        self._end(1)


class Parent:
    """The process that started the trainer, unless the trainer was started by hand, without a scratch folder."""

    def __init__(self) -> None:
        self.scratch = os.environ.get(SCRATCH_VARIABLE)
        self._pid = RunResources.read(Path(self.scratch)).command.pid if self.scratch else os.getppid()

    def follow(self) -> None:
        """Make SIGTERM interrupt the trainer as Ctrl-C does, and end the trainer when the parent ends."""
        signal.signal(signal.SIGTERM, self._terminated)
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
            command = [sys.executable, "-m", "marl_verl.process.cleanup", self.scratch]
            free = {name: value for name, value in os.environ.items() if name not in (RUN_VARIABLE, "TMPDIR")}
            subprocess.Popen(command, env=free, cwd="/", stdin=subprocess.DEVNULL, start_new_session=True)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        """The kernel sends SIGTERM when the command line is killed (Linux)."""
        if self.gone():
            self.leave(1)
        signal.raise_signal(signal.SIGINT)

    def _wait(self) -> None:
        while not self.gone():
            time.sleep(0.5)
        self.leave(1)


def is_healthy(actor: Any) -> bool:
    """Called in an actor: whether its vLLM engine works, which is often a separate process; True without one."""
    return not getattr(getattr(actor, "engine", None), "errored", False)


def _alive(call: Any) -> bool:
    import ray
    from ray.exceptions import ActorDiedError, ActorUnavailableError, OutOfMemoryError

    try:
        return bool(ray.get(call))
    except ActorUnavailableError:  # unreachable, perhaps temporarily: the next call decides
        return True
    except (ActorDiedError, OutOfMemoryError):
        return False


def queue_actors() -> dict[str, Any]:
    """TransferQueue's controller, and storage if it consists of Ray actors. Uses internals: their name and table."""
    import ray
    from transfer_queue import interface

    storage = (interface._TQ_STORAGE or {}).get("SimpleStorage") or {}
    named = {f"TransferQueue storage {number}": actor for number, actor in enumerate(storage.values())}
    return {"TransferQueue controller": ray.get_actor(*QUEUE), **named}


def how_to_continue(folder: Path) -> str:
    """The last sentence of an error message: how to continue."""
    if (folder / REQUEST).is_file():
        return "Run the evaluation again"
    if complete(folder / "checkpoints"):
        return f"Continue with: marl-verl train --resume {folder}"
    return "No checkpoint was saved yet: start a new run"


def one_line(error: BaseException) -> str:
    """One-line message for an unexpected error. The last line of Ray's message is the error in the other process."""
    from ray.exceptions import RayActorError

    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, RayActorError) and not getattr(error, "actor_init_failed", False):
        details = dict(re.findall(r"^\s*(class_name|pid): (\S+)$", str(error), flags=re.MULTILINE))
        which = f" ({details.get('class_name', 'unknown')}, process {details['pid']})" if "pid" in details else ""
        return f"a Ray actor{which} died: killed or out of memory"
    return f"{type(error).__name__}: {lines[-1] if lines else 'no message'}"
