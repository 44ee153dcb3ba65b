"""The data of a step: tasks, in the order of the data loader, and what it trains on.

A task is a row: `task` (JSON), `uid` (equal in all runs of the same config) and `keep` (whether its episodes are kept).
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np

from marl_verl.algo.advantage import AdvantageResult, Memory, RowTable
from marl_verl.algo.advantage.columns import group_mean
from marl_verl.algo.algorithms import Algorithm
from marl_verl.backend.protocol import Done, Rollouts, Rows, TaskRow
from marl_verl.config.schema import Filter
from marl_verl.errors import MarlError
from marl_verl.files import read_json, write_json

MEMORY_FILE = "memory.json"
ZERO = 1e-9  # an advantage up to this size is the rounding of 0


class AdvantageMemory:
    """The memory of an algorithm's advantage. A part of a checkpoint: `MEMORY_FILE`."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self.values: Memory = {}

    def recall(self, table: RowTable, keep: bool = True) -> RowTable:
        """The table with the columns that the advantage computes from earlier steps. `keep`: whether later steps
        remember these rows."""
        table, after = self.algorithm.recall(table, self.values)
        if keep:
            self.values = after
        return table

    def save(self, folder: Path, step: int) -> None:
        write_json(folder / MEMORY_FILE, {"step": step, "values": self.values})

    def load(self, folder: Path) -> None:
        self.values = read_json(folder / MEMORY_FILE)["values"]


class TaskData:
    """Draws tasks. `single`: a step draws any number of tasks instead of whole batches, each at most once. `keeps`:
    (step, position in the step's batch) -> whether the episodes of the task are kept."""

    def __init__(self, data: Any, single: bool, keeps: Callable[[int, int], bool]) -> None:
        import torch
        from torch.utils.data import SequentialSampler
        from torchdata.stateful_dataloader import StatefulDataLoader
        from torchdata.stateful_dataloader.sampler import RandomSampler

        self.train, self.held_out = lines(data.train_files), lines(data.val_files)
        self.size, self._single, self._keeps = int(data.train_batch_size), single, keeps
        numbers, generator = range(len(self.train)), torch.Generator()
        if (seed := data.get("seed")) is not None:
            generator.manual_seed(int(seed))
        sampler = RandomSampler(numbers, generator=generator) if data.shuffle else SequentialSampler(numbers)
        self.loader = StatefulDataLoader(
            numbers,
            batch_size=1 if single else self.size,
            num_workers=int(data.dataloader_num_workers),
            drop_last=True,
            collate_fn=list,
            sampler=sampler,
        )
        self._batches: Iterator[list[int]] = chain.from_iterable(repeat(self.loader))
        self.drawn: list[int] = []  # the tasks of the step, by number

    def next(self, step: int) -> list[TaskRow]:
        """The next batch of the loader; after the last one, the next epoch begins."""
        return self._rows(step, next(self._batches), 0)

    def draw(self, step: int, count: int) -> list[TaskRow]:
        """The next `count` tasks of a step; with `single`, none drawn before."""
        first = len(self.drawn)
        while len(self.drawn) < first + count:
            self.drawn += [number for number in next(self._batches) if not self._single or number not in self.drawn]
        return self._rows(step, self.drawn[first:], first)

    def _rows(self, step: int, numbers: list[int], first: int) -> list[TaskRow]:
        return [
            {"task": self.train[number], "uid": f"s{step}t{position:05d}", "keep": self._keeps(step, position)}
            for position, number in enumerate(numbers, first)
        ]


def lines(file: str) -> list[str]:
    """The tasks of a file, each as JSON."""
    return Path(file).read_text(encoding="utf-8").splitlines()


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
    def of(cls, table: RowTable, result: AdvantageResult, trained: Collection[str], settings: Filter) -> "Signal":
        """The signal of a batch's n rows. Groups without a row of a trained policy are neither used nor dropped."""
        codes = [code for code, name in enumerate(table.policy.names) if name in trained]
        learning = np.isin(table.policy.codes, codes) & (result.group >= 0)
        size = [np.abs(result.of_tokens(row, int(n))).max(initial=0) for row, n in enumerate(table.length)]
        _, ids = np.unique(result.group, return_inverse=True)
        mean = group_mean(result.reward, ids)[ids]
        lowest, highest = (bound if bound is not None else np.nan for bound in (settings.above, settings.below))
        within = ~(mean <= lowest) & ~(mean >= highest)
        teaching = np.unique(result.group[learning & (np.array(size) > ZERO) & within])
        kept = np.isin(result.group, teaching)
        uids = frozenset(table.uid.names[task] for task in np.unique(table.uid.codes[kept]))
        groups = len(np.unique(result.group[learning]))
        return cls(np.flatnonzero(kept).tolist(), uids, groups - len(teaching), int((learning & ~kept).sum()))

    def metrics(self) -> dict[str, float]:
        counts = {"dropped_groups": self.dropped_groups, "dropped_rows": self.dropped_rows}
        return {f"filter/{name}": float(count) for name, count in {**counts, "useful_tasks": len(self.tasks)}.items()}


class StatefulRollouts:
    """Rollouts that send states of earlier steps (`extensions`, group `state`) with each task."""

    def __init__(self, rollouts: Rollouts, states: Mapping[str, Any]) -> None:
        self._rollouts, self._states, self.assign = rollouts, states, rollouts.assign

    def sample(self, tasks: Sequence[TaskRow], step: int, validate: bool = False) -> list[Done]:
        sent = {name: state.sent() for name, state in self._states.items()}
        return self._rollouts.sample([{**task, "states": sent} for task in tasks], step, validate)


def in_key_order(done: Sequence[Done], declared: Collection[str]) -> tuple[Rows, RowTable]:
    """The rows of finished tasks, and their table, both in key order. MarlError without rows. `declared`: the reward
    components that the run sets (`Algorithm.components`)."""
    rows = [row for share in done for row in share.rows]
    if not rows:
        raise MarlError("every attempt of the step failed: there are no rows to learn from")
    rows.sort(key=lambda row: (row.uid, row.session, row.index))
    table = RowTable.of_records(rows, declared)
    return Rows(table.keys(), [row.tag for row in rows]), table
