"""What a process of a run reports: events for the command line, and durations."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

EVENTS_VARIABLE = "MARL_VERL_EVENTS"
"""The file descriptor of the events, one JSON object per line."""

SCRATCH_VARIABLE = "MARL_VERL_SCRATCH"
"""The scratch folder, in the environment of every process of a run."""


def emit(event: str, **values: Any) -> None:
    """Send an event to the command line, if the trainer was started by one."""
    if descriptor := os.environ.get(EVENTS_VARIABLE):
        os.write(int(descriptor), (json.dumps({"event": event, **values}, default=float) + "\n").encode())


@contextmanager
def awaited(what: str) -> Iterator[None]:
    """Send the command line what the start of the run waits for in this context."""
    emit("awaited", what=what, ready=False)
    yield
    emit("awaited", what=what, ready=True)


@contextmanager
def timed(times: dict[str, float], name: str) -> Iterator[None]:
    """Add the duration of the context in seconds to `times[name]`, unless it raises."""
    begun = time.monotonic()
    yield
    times[name] = times.get(name, 0.0) + time.monotonic() - begun
