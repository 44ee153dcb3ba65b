"""The backend of a run in this process: models are loaded, tasks are played in one event loop."""

import asyncio
import gc
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from marl_verl.backend.local import one_rank
from marl_verl.backend.local.policies import LocalPolicies, MemoryStore
from marl_verl.backend.protocol import Backend, Done, Host, TaskRow
from marl_verl.backend.rollout.blocked import end_if_blocked
from marl_verl.backend.rollout.worker import RolloutWorker, Sampled, collect_seldom
from marl_verl.config.hardware import cpu_run
from marl_verl.config.model_settings import uses_all_cores
from marl_verl.config.stored import team_of
from marl_verl.errors import MarlError
from marl_verl.events import Phases, emit
from marl_verl.threads import interrupt, interrupted_at_once


@contextmanager
def opened(config: Any, phase: Phases, host: Host) -> Iterator[Backend]:
    emit("phase", name="loading models")
    models = [section.actor_rollout_ref.model.path for section in config.policies.values()]
    with _process(small=cpu_run() and not any(map(uses_all_cores, models))):
        store = MemoryStore()
        policies = LocalPolicies(config, team_of(config), store)
        policies.start()
        emit("started", seconds={name: runtime.seconds for name, runtime in policies.runtimes.items()})
        with asyncio.Runner() as runner:  # one event loop for all: clients of endpoints keep their connections
            yield Backend(policies, LocalRollouts(config, policies.clients(), store, runner), store)


@contextmanager
def _process(small: bool) -> Iterator[None]:
    """Settings of this process, which is a user's own; all as before at the end. `small`: all models are small."""
    threads, thresholds = torch.get_num_threads(), gc.get_threshold()
    if small:
        torch.set_num_threads(1)  # several threads wait for each other longer than they compute
    collect_seldom()
    try:
        with interrupted_at_once():
            yield
    finally:
        one_rank.leave()
        torch.set_num_threads(threads)
        gc.set_threshold(*thresholds)
        gc.unfreeze()


class LocalRollouts(RolloutWorker):
    """`Rollouts` in this thread. Ctrl-C ends what is being played."""

    caught = (Exception, SystemExit)

    def __init__(self, config: Any, clients: Mapping[str, Any], store: MemoryStore, runner: asyncio.Runner) -> None:
        super().__init__(config, clients, store)
        self._runner, self._thread = runner, threading.get_ident()
        self._reason: str | None = None  # why the loop was interrupted
        end_if_blocked(runner.get_loop(), config.marl.rollout, self._interrupt)

    def _interrupt(self, reason: str) -> None:
        self._reason = reason
        interrupt(self._thread)

    def sample(self, tasks: Sequence[TaskRow], step: int, validate: bool = False) -> list[Done]:
        played: list[Sampled] = []

        async def play() -> None:  # without a result, of which `Runner.run` would make a text
            played.extend(await asyncio.gather(*(self.play(task, step, validate) for task in tasks)))

        try:
            self._runner.run(play())
        except BaseException as error:
            if self._reason is not None:
                raise MarlError(self._reason) from error
            raise
        return [self.done(played)]
