"""The backend of a run in this process: models are loaded, tasks are played in one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from marl_verl.backend.local.policies import LocalPolicies
from marl_verl.backend.local.store import MemoryStore
from marl_verl.backend.opening import Backend, Host
from marl_verl.backend.protocol import Done, TaskRow
from marl_verl.backend.rollout.worker import RolloutWorker
from marl_verl.config.stored import team_of
from marl_verl.events import Phases, emit


@contextmanager
def opened(config: Any, phase: Phases, host: Host) -> Iterator[Backend]:
    """The backend of a run, until the end of the block."""
    emit("phase", name="loading models")
    store = MemoryStore()
    policies = LocalPolicies(config, team_of(config), store)
    policies.start()
    emit("started", seconds={name: runtime.seconds for name, runtime in policies.runtimes.items()})
    with asyncio.Runner() as runner:  # one event loop for all: clients of endpoints keep their connections
        yield Backend(policies, LocalRollouts(RolloutWorker(config, policies.clients(), store), runner), store)


class LocalRollouts:
    """`Rollouts` in this thread. Ctrl-C ends what is being played."""

    def __init__(self, worker: RolloutWorker, runner: asyncio.Runner) -> None:
        self._worker, self._runner = worker, runner
        worker.caught = (Exception, SystemExit)

    def sample(self, tasks: Sequence[TaskRow], step: int, validate: bool = False) -> list[Done]:
        return [self._runner.run(self._play(tasks, step, validate))]

    async def _play(self, tasks: Sequence[TaskRow], step: int, validate: bool) -> Done:
        played = await asyncio.gather(*(self._worker.play(task, step, validate) for task in tasks))
        return self._worker.done(played)

    def assign(self, policies: Mapping[str, str]) -> None:
        self._worker.assign(policies)
