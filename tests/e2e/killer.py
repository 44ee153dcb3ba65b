"""A plugin for tests, loaded in every process of a run: it kills one of them in the middle of a phase of a step.

MARL_VERL_KILL="vLLM server of policy 'asker'|updating|3" names the victim (as the watch does, or "driver"), the phase
and the step. The victim is stopped just after the phase has begun, so that the processes that need it wait for it;
half a second later it is killed, and the phase lasts until the run has ended.
"""

from __future__ import annotations

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
STOP, KILL, HOLD = 0.02, 0.5, 30.0
DRIVER = "driver"


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


def install(victim: str, phase: str, step: int) -> None:
    """In the driver."""
    from marl_verl.process.watch import Phases, Watch

    watched: dict[str, Any] = {}
    call, make = Phases.__call__, Watch.__init__

    def init(self: Watch, actors: Mapping[str, Any], *rest: Any) -> None:
        watched.update(actors)
        make(self, actors, *rest)

    @contextmanager
    def phases(self: Phases, name: str) -> Iterator[None]:
        due = name == phase and self._step() == step
        chosen = {what: watched[what] for what in watched if victim in (what, DRIVER)} if due else {}
        pids = {what: pid_of(actor) for what, actor in chosen.items()}
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
    install(_victim, _phase, int(_step))
