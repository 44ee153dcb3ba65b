"""Sampling of a step: its tasks in rounds for past versions, and further tasks for those that teach nothing."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from marl_verl.algo.advantage import AdvantageResult, RowTable
from marl_verl.algo.advantage.columns import group_mean
from marl_verl.backend.protocol import Done, Report, Rollouts, Rows, TaskRow
from marl_verl.config.schedule import filter_of, settings_of
from marl_verl.errors import MarlError

ZERO = 1e-9  # an advantage up to this size is the rounding of 0


@dataclass(frozen=True)
class Signal:
    """The rows of a batch by whether their group teaches (`marl.sampler.filter`): DAPO's dynamic sampling, arXiv
    2503.14476, section 3.2.

    A group teaches if the advantage of one of its rows is not 0, i.e. A_i = (R_i - b) / (sigma + eps) != 0 for some i
    of a trained policy, and its mean reward is within `above` and `below`, as in MARTI. Groups are those that the
    algorithm declares: of a task, a turn, siblings of a tree. A task teaches if one of its groups does.
    """

    rows: list[int]  # rows of groups that teach, ascending
    tasks: frozenset[str]  # uids of the tasks that teach
    dropped_groups: int
    dropped_rows: int

    @classmethod
    def of(
        cls,
        table: RowTable,
        result: AdvantageResult,
        trained: Collection[str],
        above: float | None = None,
        below: float | None = None,
    ) -> "Signal":
        """The signal of a batch's n rows. Groups without a row of a trained policy are neither used nor dropped."""
        learning = [code for code, name in enumerate(table.policy.names) if name in trained]
        own = np.isin(table.policy.codes, learning) & (result.group >= 0)
        size = [np.abs(result.of_tokens(row, int(n))).max(initial=0) for row, n in enumerate(table.length)]
        _, ids = np.unique(result.group, return_inverse=True)
        mean = group_mean(result.reward, ids)[ids]
        within = (mean > (-np.inf if above is None else above)) & (mean < (np.inf if below is None else below))
        teaching = np.unique(result.group[own & (np.array(size) > ZERO) & within])
        kept = np.isin(result.group, teaching)
        rows = np.flatnonzero(kept)
        groups, tasks = len(np.unique(result.group[own])), np.unique(table.uid.codes[rows])
        uids = frozenset(table.uid.names[task] for task in tasks)
        return cls(rows.tolist(), uids, groups - len(teaching), int((own & ~kept).sum()))

    def metrics(self) -> dict[str, float]:
        counts = {"dropped_groups": self.dropped_groups, "dropped_rows": self.dropped_rows}
        return {f"filter/{name}": float(count) for name, count in {**counts, "useful_tasks": len(self.tasks)}.items()}


class Schedule(ABC):
    """When the run samples and when it learns."""

    @abstractmethod
    def step(self, seconds: dict[str, float]) -> tuple[dict[str, float], list[str]]:
        """Run one step, and add its seconds. Returns its metrics, and the keys of the rows that are used up."""

    @abstractmethod
    def versions(self) -> dict[str, int]:
        """Policy -> the version of its weights, which every action reports."""

    def sync(self, seconds: dict[str, float]) -> None:
        """Act with the new weights; called after a step's checkpoint and before its validation."""

    def settle(self) -> None:
        """Wait until no update or weight sync is running. Called before a checkpoint and before a validation."""

    def state(self) -> dict[str, Any] | None:
        """What a checkpoint stores for `restore`; None for nothing."""
        return None

    def restore(self, state: dict[str, Any] | None) -> None: ...


def in_turn(config: Any, step: int, rows: Rows) -> Rows:
    """The rows of those policies whose turn a step is (`marl.schedule.turns`)."""
    settings = settings_of(config)
    if not settings.turns:
        return rows
    turn = settings.turns[(step - 1) // settings.turn_steps % len(settings.turns)]
    return rows.part([row for row, tag in enumerate(rows.tags) if tag["policy"] in turn])


class StatefulRollouts:
    """Rollouts that send states of earlier steps (`extensions`, group `state`) with each task."""

    def __init__(self, rollouts: Rollouts, states: Mapping[str, Any]) -> None:
        self._rollouts, self._states, self.assign = rollouts, states, rollouts.assign

    def sample(self, tasks: Sequence[TaskRow], step: int, validate: bool = False) -> list[Done]:
        sent = {name: state.sent() for name, state in self._states.items()}
        return self._rollouts.sample([{**task, "states": sent} for task in tasks], step, validate)


class Sampling:
    """The sampling of a synchronous step of a `Trainer`."""

    def __init__(self, trainer: Any) -> None:
        self.trainer, self.filter = trainer, filter_of(trainer.config)
        self.reports: list[Report] = []  # of the step
        self.refills = 0

    def sample(self) -> tuple[Rows, RowTable]:
        """Sample the tasks of a step and, with a filter, up to `refill` times further tasks for those that teach
        nothing. Returns the rows in key order."""
        trainer, data = self.trainer, self.trainer.data
        self.reports, data.drawn, self.refills = [], [], 0
        done = self._sample(data.size)
        for _ in range(self.filter.refill if self.filter is not None else 0):
            missing = min(data.size - self._useful_tasks(done), len(data.train) - len(data.drawn))
            if not missing:
                break
            self.refills += 1
            done += self._sample(missing)
        for part in trainer.recording.values():
            part.record(self.reports)
        # where servers and training share a GPU, the servers free its memory until the weights are synced
        trainer.policies.sleep()
        return in_key_order(done, trainer.declared)

    def _sample(self, count: int) -> list[Done]:
        """Sample further tasks of the step and wait. With past versions, in a round for each snapshot."""
        trainer, done = self.trainer, list[Done]()
        tasks = trainer.data.draw(trainer.step, count)
        rounds: list[tuple[Mapping[str, int], Sequence[TaskRow]]] = [({}, tasks)]
        if trainer.past is not None:
            met = trainer.past.rounds([task["uid"] for task in tasks])
            rounds = [(snapshots, [tasks[place] for place in positions]) for snapshots, positions in met]
        for snapshots, chosen in rounds:
            trainer.use_snapshots(snapshots)
            done += trainer.rollouts.sample(chosen, trainer.step)
        self.keep([*self.reports, *(report for share in done for report in share.reports)])
        return done

    def keep(self, reports: list[Report]) -> None:
        """Store the episodes of a step's tasks. MarlError if too many failed."""
        self.reports = reports
        self.trainer.records.journals(self.trainer.step, reports)

    def _useful_tasks(self, done: list[Done]) -> int:
        """Number of tasks of the step with something to learn from; a task without rows has failed."""
        if not any(share.records for share in done):
            return 0
        trainer = self.trainer
        table = trainer.memory.recall(trainer.algorithm.credited(in_key_order(done, trainer.declared)[1]), keep=False)
        signal = self.signal(table, trainer.algorithm.compute(table))
        return len(signal.tasks) if signal is not None else 0

    def signal(self, table: RowTable, result: AdvantageResult) -> Signal | None:
        """The rows to train on; None without a filter: all."""
        if self.filter is None:
            return None
        return Signal.of(table, result, self.trainer.policies.learning, self.filter.above, self.filter.below)

    def metrics(self) -> dict[str, float]:
        values: dict[str, float] = {}
        if self.filter is not None and self.trainer.data.drawn:
            drawn = len(self.trainer.data.drawn)
            values |= {"filter/refill_rounds": float(self.refills), "filter/tasks": float(drawn)}
        for part in self.trainer.recording.values():
            values |= part.metrics()
        return values


def in_key_order(done: Sequence[Done], declared: Collection[str]) -> tuple[Rows, RowTable]:
    """The rows of finished tasks, and their table, both in key order. MarlError without rows.

    Args:
        declared: the reward components that the run sets (`Algorithm.components`).
    """
    records = [record for share in done for record in share.records]
    if not records:
        raise MarlError("every attempt of the step failed: there are no rows to learn from")
    records.sort(key=lambda record: (record.uid, record.session, record.index))
    table = RowTable.of_records(records, declared)
    tags = {key: tag for share in done for key, tag in zip(share.rows.keys, share.rows.tags, strict=True)}
    keys = table.keys()
    return Rows(keys, [tags[key] for key in keys]), table
