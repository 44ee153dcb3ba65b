"""Crash detection: the trainer's process ends within seconds after the death of an actor.

Ray does not report a dead server to a training worker that waits for it on a socket, nor to the driver that waits for
the worker. So `Watch` keeps a call pending at every actor, which fails as soon as the actor dies.
"""

import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from marl_verl.backend.protocol import OUT_OF_MEMORY, Host, one_line
from marl_verl.backend.rollout.blocked import reason_file
from marl_verl.events import emit

PERIOD = 1.0  # seconds between two checks of the actors
PATIENCE = 15.0  # maximum seconds to wait, after an error from Ray, for an actor to be reported dead
QUEUE = ("TransferQueueController", "transfer_queue")
"""Name and namespace of TransferQueue's controller, of which a Ray session has one."""
KILLED = "killed or out of memory, see train.log"


class Watch:
    """Ends this process when one of the run's actors (name in errors -> handle) is dead; `activity`: of the run."""

    def __init__(self, actors: Mapping[str, Any], activity: Callable[[], str], host: Host) -> None:
        self._actors, self._activity, self._host = dict(actors), activity, host
        self._calls: dict[str, Any] = {}
        self._error: Exception | None = None  # of the context
        self._stopped = threading.Event()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Watch during the context. If it raises because an actor died, the death is the reported error."""
        from ray.exceptions import RayError

        thread = threading.Thread(target=self._look, name="watch", daemon=True)
        thread.start()
        try:
            yield
        except Exception as error:
            self._error = error
            # Ray reports a dead actor as unavailable at first
            thread.join(PATIENCE if self._actors and isinstance(error, RayError) else 2 * PERIOD)
            raise
        finally:
            self._stopped.set()
            thread.join()

    def _died(self) -> str | None:
        """The error message for the first dead process, or None."""
        process, why = next(self._deaths(), (None, ""))
        if process is None:
            return None
        if (blocked := reason_file()) is not None and blocked.is_file():
            why = blocked.read_text()
        return f"{process} died {self._activity()} ({why}). {self._host.advice()}"

    def _deaths(self) -> Iterator[tuple[str, str]]:
        """Dead processes, and why. An actor that answered, or whose call raised otherwise, is asked again."""
        import ray

        yield from ((f"Ray's {name}", KILLED) for name in dead_servers())
        for name in self._actors.keys() - self._calls.keys():
            self._calls[name] = self._actors[name].__ray_call__.remote(is_healthy)
        calls = list(self._calls.values())
        answered = ray.wait(calls, num_returns=len(calls), timeout=PERIOD / 2)[0] if calls else []
        for name in [name for name in self._actors if self._calls[name] in answered]:
            try:
                why = None if ray.get(self._calls.pop(name)) else KILLED
            except Exception as error:  # noqa: BLE001 - of any kind: the actor is dead, or is asked again
                why = cause_of_death(error)
            if why is not None:
                yield f"the {name}", why

    def _look(self) -> None:
        while not self._stopped.wait(PERIOD):
            try:
                died = self._died()
            except Exception as error:  # noqa: BLE001 - without a watch, the run could hang
                traceback.print_exc()
                problem = f"cannot check the run's processes: {one_line(error)}. {self._host.advice()}"
                died = problem if self._error is None else None  # the run's error is not hidden
            if died is not None and not self._stopped.is_set():  # a shutdown ends actors, too
                if self._error is not None:
                    traceback.print_exception(self._error)
                print(f"marl-verl: {died}", file=sys.stderr)
                emit("error", message=died, expected=False)
                self._host.leave(1)
                return


def is_healthy(actor: Any) -> bool:
    """Called in an actor: whether its vLLM engine works, which is often a separate process; True without one."""
    return not getattr(getattr(actor, "engine", None), "errored", False)


def cause_of_death(error: Exception) -> str | None:
    """Why an actor is dead, from the exception of a call to it; None if it may still live."""
    from ray import exceptions

    if isinstance(error, exceptions.OutOfMemoryError):
        return OUT_OF_MEMORY
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
