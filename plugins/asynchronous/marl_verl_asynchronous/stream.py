"""Single tasks in flight at the rollout workers of a run on Ray."""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

import ray

from marl_verl.backend.protocol import Report, TaskRow
from marl_verl.threads import in_thread


class Stream:
    """Plays tasks with the actors of rollout workers, and holds requests by their gates while weights change."""

    def __init__(self, workers: Sequence[Any]) -> None:
        self._workers = workers
        self._tasks: dict[Future[list[Report]], int] = {}  # a task in flight -> the number of its worker

    def dispatch(self, task: TaskRow, step: int) -> None:
        """Begin a task in the least loaded worker, without waiting. A validation may run while it is in flight."""
        loads = Counter(self._tasks.values())
        least = min(range(len(self._workers)), key=loads.__getitem__)
        self._tasks[self._workers[least].sample.remote([task], step, False).future()] = least

    def finished(self, updates: Sequence[Future[Any]]) -> list[Report]:
        """Finished tasks, when there is one, or when one of `updates` is done."""
        wait([*self._tasks, *updates], return_when=FIRST_COMPLETED)
        finished = [task for task in self._tasks if task.done()]
        for task in finished:
            del self._tasks[task]
        return [report for task in finished for report in task.result()]

    beside = staticmethod(in_thread)
    """Run an update, with a name, while sampling continues; a future of its result."""

    def gate(self, policy: str, change: str) -> None:
        """Hold the requests of a policy and wait until none is in flight ("close"), or release them ("open")."""
        ray.get([worker.gate.remote(policy, change) for worker in self._workers])
