"""A plugin for tests, loaded in every process of a run: it kills one of them in the middle of a phase of a step.

MARL_VERL_KILL="vLLM server of policy 'asker'|updating|3" names the victim (as the watch does, or "driver"), the phase
and the step. The victim is stopped just after the phase has begun, so that the processes that need it wait for it;
half a second later it is killed, and the phase lasts until the run has ended.

A path as victim: nothing is killed. The file is made when the phase has begun in the step or later, and the phase lasts
some seconds more. It may also be one of `CALLS`.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from marl_verl import hookimpl

VARIABLE = "MARL_VERL_KILL"
STOP, KILL, HOLD, ANNOUNCED = 0.02, 0.5, 30.0, 5.0
DRIVER = "driver"
CALLS = (
    *("old_log_probs", "ref_log_prob", "updating a policy", "syncing a policy", "writing the summary", "stopping Ray"),
)
"""Moments of the driver that are no phase of their own."""


@hookimpl
def marl_step_finished(step: int, metrics: dict[str, float]) -> None:
    """A plugin has to implement a hook."""


def pid_of(actor: Any) -> int:
    import ray

    return int(ray.get(actor.__ray_call__.remote(lambda _: os.getpid())))


def kill(victim: str, pids: Mapping[str, int]) -> None:
    """Stop it, wait, kill it. Where it is the driver, everybody else is stopped, so that nothing comes to its end."""
    time.sleep(STOP)
    for pid in pids.values() if victim == DRIVER else [pids[victim]]:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(KILL)
    os.kill(os.getpid() if victim == DRIVER else pids[victim], signal.SIGKILL)
    print(f"killed {victim}", file=sys.stderr, flush=True)


def announce(file: str, phase: str, step: int) -> None:
    """In the driver: make a file when a phase or a call begins in a step or later, and let it last."""
    from marl_verl.events import Phases

    call, now, path = Phases.__call__, {"step": 0}, Path(file)

    def begun(name: str) -> None:
        if name == phase and now["step"] >= step and not path.exists():
            path.touch()
            time.sleep(ANNOUNCED)

    def around(owner: Any, attribute: str, name: str) -> None:
        original = getattr(owner, attribute)

        def wrapped(*args: Any, **options: Any) -> Any:
            begun(name or args[2])  # the field of `_log_probs`
            return original(*args, **options)

        setattr(owner, attribute, wrapped)

    def around_calls() -> None:
        import ray

        from marl_verl.backend.learning.policy import LearningPolicy
        from marl_verl.backend.verl.policies import PolicyRuntime

        around(LearningPolicy, "_log_probs", "")
        around(LearningPolicy, "update", "updating a policy")
        around(PolicyRuntime, "sync", "syncing a policy")
        around(sys.modules["__main__"], "write_summary", "writing the summary")
        around(ray, "shutdown", "stopping Ray")

    @contextmanager
    def phases(self: Phases, name: str) -> Iterator[None]:
        if name == "starting":
            around_calls()
        now["step"] = self.step
        with call(self, name):
            begun(name)
            yield

    Phases.__call__ = phases  # type: ignore[method-assign]


def install(victim: str, phase: str, step: int) -> None:
    """In the driver."""
    from marl_verl.backend.verl.watch import Watch
    from marl_verl.events import Phases

    watched: dict[str, Any] = {}
    call, make = Phases.__call__, Watch.__init__

    def init(self: Watch, actors: Mapping[str, Any], *rest: Any) -> None:
        watched.update(actors)
        make(self, actors, *rest)

    @contextmanager
    def phases(self: Phases, name: str) -> Iterator[None]:
        due = name == phase and self.step == step
        chosen = {name: actor for name, actor in watched.items() if victim in (name, DRIVER)} if due else {}
        pids = {name: pid_of(actor) for name, actor in chosen.items()}
        with call(self, name):
            if due:
                threading.Thread(target=kill, args=(victim, pids), daemon=True).start()
            yield
            if due:
                time.sleep(HOLD)

    Watch.__init__ = init  # type: ignore[method-assign]
    Phases.__call__ = phases  # type: ignore[method-assign]


def write_site(site: Path) -> Path:
    """A folder for PYTHONPATH in which this plugin is installed."""
    from tests.sites import add_distribution  # the installed copy is imported where there are no tests

    add_distribution(site, "killer", {"killer": "killer"})
    (site / "killer.py").write_text(Path(__file__).read_text())
    return site


_main = getattr(sys.modules["__main__"], "__spec__", None)
if os.environ.get(VARIABLE) and _main is not None and _main.name == "marl_verl.trainer.run":
    _victim, _phase, _step = os.environ[VARIABLE].split("|")
    (announce if _victim.startswith("/") else install)(_victim, _phase, int(_step))
