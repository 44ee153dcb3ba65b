"""Tasks under way: so many are given to the rollout workers at any time, and none is lost when a run is continued.

A task is under way from when it is handed out until the trainer has dealt with its rows. A checkpoint keeps those under
way and those that were read from the data and not handed out yet; a continued run hands them out again, under the same
uids. So every task of the data counts once, however often a run is stopped.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from marl_verl.rollout.manager import TeamRolloutManager

Task = dict[str, Any]
"""The columns of `TaskDataset`, with `uid`, `keep` (whether its episodes are stored) and `batch` (which one of the
data's it is in, from 1)."""


class Dispatch:
    """Keeps `limit` tasks under way, from batches of the data that `fetch` gives without end."""

    def __init__(self, fetch: Callable[[], list[Task]], limit: int) -> None:
        self.limit, self._fetch, self._batches = limit, fetch, 0
        self._next: deque[Task] = deque()
        self._out: dict[str, tuple[Task, Mapping[str, int]]] = {}  # with the versions when it was handed out

    def __len__(self) -> int:
        return len(self._out)

    def fill(self, workers: TeamRolloutManager, versions: Mapping[str, int]) -> None:
        """Hand out tasks until there are `limit` under way. `versions` are those of every policy, now."""
        new = [self._take() for _ in range(self.limit - len(self))]
        for task in new:
            self._out[task["uid"]] = task, dict(versions)
        for batch, tasks in itertools.groupby(new, key=lambda task: task["batch"]):
            workers.dispatch([{name: task[name] for name in task if name != "batch"} for task in tasks], batch)

    def done(self, uid: str) -> None:
        """A task's rows have been dealt with. KeyError if it was not under way."""
        del self._out[uid]

    def oldest(self, policy: str) -> int | None:
        """The oldest version of a policy that a task under way may have rows of; None without such a task."""
        return min((versions[policy] for _, versions in self._out.values()), default=None)

    def state(self) -> dict[str, Any]:
        """What `restore` takes."""
        return {"batches": self._batches, "tasks": [*(task for task, _ in self._out.values()), *self._next]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from where `state` was taken: what was under way then is handed out first."""
        self._batches = int(state["batches"])
        self._next = deque(dict(task) for task in state["tasks"])
        self._out = {}

    def _take(self) -> Task:
        if not self._next:
            self._batches += 1
            for position, task in enumerate(self._fetch()):
                # numbered by batches of the data: several are read in one step, and a continued run goes on counting
                uid = f"s{self._batches}t{position:05d}"
                self._next.append({**task, "uid": uid, "batch": self._batches})
        return self._next.popleft()
