"""A run that has lost one of its processes ends within seconds, with a sentence that says which, when, and what to do.

Ray tells whoever waits for an answer of a dead actor. It does not tell a training worker that waits on a socket for a
dead server, nor an episode whose act failed, nor the driver that waits for them. So every actor is asked, all the time,
whether it is well: a question that waits while its actor works, and fails as soon as its actor is dead.
"""

from __future__ import annotations

import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from marl_verl.checkpoint.files import complete
from marl_verl.process.run_dir import REQUEST, emit

PERIOD = 1.0
"""Seconds between two looks."""

PATIENCE = 15.0
"""Seconds in which to find the death behind an error that Ray raised."""


class Phases:
    """What the run is doing, for the sentence about its end. Phases may overlap, in different threads.

    The command line is told too: it tells what a killed trainer was doing.

    Args:
        step: the step that the run is at; 0 before the first.
    """

    def __init__(self, step: Callable[[], int]) -> None:
        self._step = step
        self._active: list[str] = []
        self._lock = threading.Lock()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """`with phases("updating"): ...`: after an error the phase stays, it is the one that failed."""
        self._change(self._active.append, name)
        yield
        self._change(self._active.remove, name)

    def told(self) -> str:
        """E.g. "while updating in step 12", or "while validating, before the first step"."""
        doing = " and ".join(dict.fromkeys(self._active)) or "working"
        step = self._step()
        return f"while {doing}{f' in step {step}' if step else ', before the first step'}"

    def _change(self, change: Callable[[str], None], name: str) -> None:
        with self._lock:
            change(name)
            emit("doing", told=self.told())


class Watch:
    """Looks after the actors of a run.

    Args:
        actors: what it is -> Ray's handle.
        told: what the run is doing, as a clause.
        folder: the run directory.
        end: ends this process at once, with this exit code: its main thread may wait for ever.
    """

    def __init__(
        self, actors: Mapping[str, Any], told: Callable[[], str], folder: Path, end: Callable[[int], Any]
    ) -> None:
        self._actors, self._told, self._folder, self._end = dict(actors), told, folder, end
        self._questions: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, name="watch", daemon=True)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Watch while the context lasts. Where something fails in it and an actor is dead, that is the reason."""
        self._thread.start()
        try:
            yield
        except Exception as error:
            died = self._look_again(error)
            if died is not None:
                traceback.print_exc()
                self._finish(died)
            raise
        finally:
            self._stopped.set()
            self._thread.join()

    def died(self, timeout: float = 0.0) -> str | None:
        """The sentence about the first actor that is dead, None if all are well or too busy to say so.

        Args:
            timeout: seconds to wait for the busy ones.
        """
        with self._lock:
            dead = self._dead(timeout)
        if dead is None:
            return None
        return f"the {dead} died {self._told()} (killed, or out of memory: see train.log): {go_on(self._folder)}"

    def _look_again(self, error: Exception) -> str | None:
        """Whether a death is behind an error. For a moment Ray calls a dead actor unavailable: that is asked again."""
        from ray.exceptions import RayError

        until = time.monotonic() + (PATIENCE if isinstance(error, RayError) else PERIOD)
        while (died := self.died(timeout=PERIOD)) is None and time.monotonic() < until:
            time.sleep(PERIOD / 10)
        return died

    def _dead(self, timeout: float) -> str | None:
        import ray

        for name, actor in self._actors.items():
            if name not in self._questions:
                self._questions[name] = actor.__ray_call__.remote(is_well)
        questions = list(self._questions.values())
        answered, _ = ray.wait(questions, num_returns=len(questions), timeout=timeout)
        for name in [name for name, question in self._questions.items() if question in answered]:
            if not _answer(self._questions.pop(name)):
                return name
        return None

    def _look(self) -> None:
        while not self._stopped.wait(PERIOD):
            died = self.died()
            # an end that is under way may take actors with it
            if died is not None and not self._stopped.is_set():
                self._finish(died)
                return

    def _finish(self, died: str) -> None:
        print(f"marl-verl: {died}", file=sys.stderr)
        emit("error", message=died, expected=False)
        self._end(1)


def is_well(actor: Any) -> bool:
    """Runs in an actor. It is there; and a vLLM server has an engine, often a process of its own, that must be too."""
    engine = getattr(actor, "engine", None)
    return not getattr(engine, "errored", False)


def _answer(question: Any) -> bool:
    import ray
    from ray.exceptions import ActorDiedError, ActorUnavailableError

    try:
        return bool(ray.get(question))
    except ActorUnavailableError:  # not reached for a moment: the next question tells
        return True
    except ActorDiedError:
        return False


def queue_actors() -> dict[str, Any]:
    """TransferQueue's processes: its controller, and its storage where that is Ray actors.

    Touches TransferQueue: the controller's name, and the table of what the process that called `init` has started.
    """
    import ray
    from transfer_queue import interface

    storage = (interface._TQ_STORAGE or {}).get("SimpleStorage") or {}
    named = {f"TransferQueue storage {number}": actor for number, actor in enumerate(storage.values())}
    return {"TransferQueue controller": ray.get_actor("TransferQueueController", namespace="transfer_queue"), **named}


def go_on(folder: Path) -> str:
    """What to do about a run, or an evaluation, that did not come to its end."""
    if (folder / REQUEST).is_file():
        return "run the evaluation again"
    if complete(folder / "checkpoints"):
        return f"continue with: marl-verl train --resume {folder}"
    return "no checkpoint was saved yet, start it anew"


def sentence(error: BaseException) -> str:
    """An error that nobody expected, in a sentence.

    Of Ray's the last line says what happened in the other process; when that one died, Ray's line is a paragraph.
    """
    from ray.exceptions import RayActorError

    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, RayActorError) and not getattr(error, "actor_init_failed", False):
        told = dict(re.findall(r"^\s*(class_name|pid): (\S+)$", str(error), flags=re.MULTILINE))
        which = f" ({told.get('class_name', 'unknown')}, process {told['pid']})" if "pid" in told else ""
        return f"a Ray actor{which} died: killed, or out of memory"
    return f"{type(error).__name__}: {lines[-1] if lines else 'no message'}"
