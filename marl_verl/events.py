"""What a process of a run reports: events for the command line, and durations."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

EVENTS_VARIABLE = "MARL_VERL_EVENTS"  # the file descriptor of the events, one JSON object per line
SCRATCH_VARIABLE = "MARL_VERL_SCRATCH"  # the scratch folder, in the environment of every process of a run
receiver: Callable[[dict[str, Any]], object] | None = None
"""Called with the events of this process, for a run in the process of the command line."""


def emit(event: str, **values: Any) -> None:
    """Send an event to the command line, if this process was started by one, or to the `receiver`."""
    if receiver is not None:
        receiver(json.loads(json.dumps({"event": event, **values}, default=float)))
    elif descriptor := os.environ.get(EVENTS_VARIABLE):
        os.write(int(descriptor), (json.dumps({"event": event, **values}, default=float) + "\n").encode())


@contextmanager
def awaited(label: str) -> Iterator[None]:
    """Send the command line what the start of the run waits for in this context."""
    emit("awaited", what=label, ready=False)
    yield
    emit("awaited", what=label, ready=True)


@contextmanager
def timed(times: dict[str, float], name: str) -> Iterator[None]:
    """Add the duration of the context in seconds to `times[name]`, unless it raises."""
    begun = time.monotonic()
    yield
    times[name] = times.get(name, 0.0) + time.monotonic() - begun


class Phases:
    """The run's current activities and step, for error messages here and in the command line. Phases may overlap."""

    def __init__(self, step: int = 0) -> None:
        self.step = step
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
        doing, step = " and ".join(dict.fromkeys(self._active)) or "working", self.step
        return f"while {doing}{f' in step {step}' if step else ', before the first step'}"

    def _change(self, change: Callable[[str], None], name: str) -> None:
        with self._lock:
            change(name)
            emit("doing", activity=self.describe(), phases=list(self._active))
