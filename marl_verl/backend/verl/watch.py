"""Crash detection: the trainer's process ends within seconds after the death of an actor.

Ray does not report a dead server to a training worker that waits for it on a socket, nor to the driver that waits for
the worker. So `Watch` keeps a call pending at every actor, which fails as soon as the actor dies.
"""

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from marl_verl.backend.cluster import QUEUE
from marl_verl.backend.opening import Host, one_line, out_of_memory
from marl_verl.backend.rollout.blocked import reason_file
from marl_verl.events import emit

PERIOD = 1.0  # seconds between two checks of the actors
PATIENCE = 15.0  # maximum seconds to wait, after an error from Ray, for an actor to be reported dead
UNREACHABLE = 120.0
"""Seconds of failing calls after which an actor counts as dead, although Ray does not say so."""

KILLED = "killed or out of memory, see train.log"


class Watch:
    """Ends this process when one of the run's actors is dead.

    Args:
        actors: name in error messages -> Ray's handle.
        activity: returns the run's activity, e.g. `Phases.describe`.
    """

    def __init__(self, actors: Mapping[str, Any], activity: Callable[[], str], host: Host) -> None:
        self._actors, self._activity, self._host = dict(actors), activity, host
        self._calls: dict[str, Any] = {}
        self._failing: dict[str, float] = {}  # actor -> since when its calls raise
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
            until = time.monotonic() + (PATIENCE if self._actors and isinstance(error, RayError) else PERIOD)
            died = None
            with suppress(Exception):  # a watch that fails does not hide the run's error
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
        """The error message for the first dead process, or None; waits `timeout` seconds for busy actors."""
        with self._lock:
            death = next(((f"Ray's {name}", KILLED) for name in dead_servers()), None) or self._dead_actor(timeout)
        if death is None:
            return None
        process, why = death
        if (blocked := reason_file()) is not None and blocked.is_file():
            why = blocked.read_text()
        return f"{process} died {self._activity()} ({why}). {self._host.advice()}"

    def _dead_actor(self, timeout: float) -> tuple[str, str] | None:
        """(name, why) of the first dead actor, or None. A call that raised is repeated for `UNREACHABLE` seconds."""
        import ray

        for name, actor in self._actors.items():
            if name not in self._calls:
                self._calls[name] = actor.__ray_call__.remote(is_healthy)
        calls = list(self._calls.values())
        answered = ray.wait(calls, num_returns=len(calls), timeout=timeout)[0] if calls else []
        for name in [name for name, call in self._calls.items() if call in answered]:
            try:
                why = None if ray.get(self._calls.pop(name)) else KILLED
                self._failing.pop(name, None)
            except Exception as error:  # noqa: BLE001 - of any kind: the actor is dead, or is asked again
                since = self._failing.setdefault(name, time.monotonic())
                long = time.monotonic() > since + UNREACHABLE
                why = cause_of_death(error) or (f"no answer: {type(error).__name__}" if long else None)
            if why is not None:
                return f"the {name}", why
        return None

    def _look(self) -> None:
        while not self._stopped.wait(PERIOD):
            try:
                died = self._died()
            except Exception as error:  # noqa: BLE001 - without a watch, the run could hang
                traceback.print_exc()
                died = f"cannot check the run's processes: {one_line(error)}. {self._host.advice()}"
            if died is not None and not self._stopped.is_set():  # a shutdown ends actors, too
                self._finish(died)
                return

    def _finish(self, died: str) -> None:
        print(f"marl-verl: {died}", file=sys.stderr)
        emit("error", message=died, expected=False)
        self._host.leave(1)


def is_healthy(actor: Any) -> bool:
    """Called in an actor: whether its vLLM engine works, which is often a separate process; True without one."""
    return not getattr(getattr(actor, "engine", None), "errored", False)


def cause_of_death(error: Exception) -> str | None:
    """Why an actor is dead, from the exception of a call to it; None if it may still live."""
    from ray import exceptions

    if isinstance(error, exceptions.OutOfMemoryError):
        return out_of_memory(error)
    dead = (
        *(exceptions.ActorDiedError, exceptions.ActorHandleNotFoundError, exceptions.ActorUnschedulableError),
        *(exceptions.NodeDiedError, exceptions.WorkerCrashedError, exceptions.LocalRayletDiedError),
    )
    return KILLED if isinstance(error, dead) else None


def dead_servers() -> list[str]:
    """Processes of a Ray session started here without which it does not work. Uses internals: the driver's node."""
    from ray._private import worker

    node = worker._global_node
    dead = {str(kind) for kind, _ in node.dead_processes()} if node is not None else set()
    return [name for name in ("gcs_server", "raylet") if name in dead]


def queue_actors() -> dict[str, Any]:
    """TransferQueue's controller, and storage if it consists of Ray actors. Uses internals: their name and table."""
    import ray
    from transfer_queue import interface

    storage = (interface._TQ_STORAGE or {}).get("SimpleStorage") or {}
    named = {f"TransferQueue storage {number}": actor for number, actor in enumerate(storage.values())}
    return {"TransferQueue controller": ray.get_actor(*QUEUE), **named}
