"""Crash detection in the trainer's process: it ends within seconds after one of its actors or the command line.

Ray does not report a dead server to a training worker that waits on a socket for it, nor to the driver that waits for
the worker. So `Watch` keeps a call pending at every actor, which fails as soon as the actor is dead.
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

from marl_verl.checkpoint.files import complete
from marl_verl.platforms.active import RUN_VARIABLE
from marl_verl.process.cleanup import SCRATCH_VARIABLE, RunResources
from marl_verl.process.run_dir import REQUEST, emit

PERIOD = 1.0
"""Seconds between two checks of the actors."""

PATIENCE = 15.0
"""Seconds in which to find the death behind an error that Ray raised."""


class Phases:
    """What the run is doing at which step, for error messages here and in the command line. Phases may overlap."""

    def __init__(self, step: Callable[[], int]) -> None:
        self._step = step
        self._active: list[str] = []
        self._lock = threading.Lock()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """`with phases("updating"): ...`; after an error the phase stays, because it is the one that failed."""
        self._change(self._active.append, name)
        yield
        self._change(self._active.remove, name)

    def output(self) -> str:
        """E.g. "while updating in step 12", or "while validating, before the first step"."""
        doing, step = " and ".join(dict.fromkeys(self._active)) or "working", self._step()
        return f"while {doing}{f' in step {step}' if step else ', before the first step'}"

    def _change(self, change: Callable[[str], None], name: str) -> None:
        with self._lock:
            change(name)
            emit("doing", output=self.output())


class Watch:
    """Ends this process when one of the run's actors is dead.

    Args:
        actors: name in error messages -> Ray's handle.
        told: returns what the run is doing, as a clause.
        end: ends this process at once with an exit code: its main thread may be blocked.
    """

    def __init__(
        self, actors: Mapping[str, Any], output: Callable[[], str], folder: Path, end: Callable[[int], Any]
    ) -> None:
        self._actors, self._told, self._folder, self._end = dict(actors), output, folder, end
        self._questions: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, name="watch", daemon=True)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Watch during the context. If an actor is dead when the context fails, that is the reported reason."""
        from ray.exceptions import RayError

        self._thread.start()
        try:
            yield
        except Exception as error:
            # for a moment Ray calls a dead actor unavailable
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
        """The message about the first actor that is dead; `timeout` seconds are waited for busy actors."""
        import ray

        with self._lock:
            for name, actor in self._actors.items():
                if name not in self._questions:
                    self._questions[name] = actor.__ray_call__.remote(is_well)
            questions = list(self._questions.values())
            answered, _ = ray.wait(questions, num_returns=len(questions), timeout=timeout)
            names = [name for name, question in self._questions.items() if question in answered]
            dead = next((name for name in names if not _answer(self._questions.pop(name))), None)
        if dead is None:
            return None
        return f"the {dead} died {self._told()} (killed, or out of memory: see train.log): {go_on(self._folder)}"

    def _look(self) -> None:
        while not self._stopped.wait(PERIOD):
            died = self._died()
            if died is not None and not self._stopped.is_set():  # an end that is under way may end actors
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
        """From now on SIGTERM interrupts the trainer as Ctrl-C does, and the end of the parent ends it."""
        signal.signal(signal.SIGTERM, self._terminated)
        if self.scratch:
            threading.Thread(target=self._wait, name="parent", daemon=True).start()

    def gone(self) -> bool:
        return self.scratch is not None and os.getppid() != self._pid

    def leave(self, code: int) -> NoReturn:
        """End this process at once, whatever its other threads wait for.

        An orphan starts the cleanup as a process, because it would not outlive the end of its own Ray session.
        """
        if self.scratch and self.gone():
            print("the command line is gone: the run ends, and what is left of it is removed", file=sys.stderr)
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


def is_well(actor: Any) -> bool:
    """Runs in an actor: whether its vLLM engine, if it has one, often a process of its own, works."""
    return not getattr(getattr(actor, "engine", None), "errored", False)


def _answer(question: Any) -> bool:
    import ray
    from ray.exceptions import ActorDiedError, ActorUnavailableError

    try:
        return bool(ray.get(question))
    except ActorUnavailableError:  # not reached for a moment: the next question decides
        return True
    except ActorDiedError:
        return False


def queue_actors() -> dict[str, Any]:
    """TransferQueue's controller, and its storage where that is Ray actors. Uses internals: their name and table."""
    import ray
    from transfer_queue import interface

    storage = (interface._TQ_STORAGE or {}).get("SimpleStorage") or {}
    named = {f"TransferQueue storage {number}": actor for number, actor in enumerate(storage.values())}
    return {"TransferQueue controller": ray.get_actor("TransferQueueController", namespace="transfer_queue"), **named}


def go_on(folder: Path) -> str:
    if (folder / REQUEST).is_file():
        return "run the evaluation again"
    if complete(folder / "checkpoints"):
        return f"continue with: marl-verl train --resume {folder}"
    return "no checkpoint was saved yet, start it anew"


def sentence(error: BaseException) -> str:
    """An unexpected error in a sentence. The last line of Ray's message is the error in the other process."""
    from ray.exceptions import RayActorError

    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, RayActorError) and not getattr(error, "actor_init_failed", False):
        output = dict(re.findall(r"^\s*(class_name|pid): (\S+)$", str(error), flags=re.MULTILINE))
        which = f" ({output.get('class_name', 'unknown')}, process {output['pid']})" if "pid" in output else ""
        return f"a Ray actor{which} died: killed, or out of memory"
    return f"{type(error).__name__}: {lines[-1] if lines else 'no message'}"
