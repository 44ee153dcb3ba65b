"""The data of a step: tasks, in the order of the data loader or of the curriculum, and what it trains on.

A task is a row: `task` (JSON), `uid` (equal in all runs of the same config) and `keep` (whether its episodes are kept).
"""

import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np

from marl_verl.algo.advantage import AdvantageResult, FloatArray, IntArray, Memory, RowTable
from marl_verl.algo.advantage.columns import group_mean
from marl_verl.algo.algorithms import Algorithm
from marl_verl.backend.protocol import Report, Rows, TaskRow
from marl_verl.config.schema import Curriculum as CurriculumSettings
from marl_verl.config.schema import Filter
from marl_verl.errors import MarlError
from marl_verl.files import read_json, write_json

POOLS = ("new", "hard", "medium", "easy")
FILE, MEMORY_FILE = "tasks.json", "memory.json"
ZERO = 1e-9  # an advantage up to this size is the rounding of 0


class Curriculum:
    """Success rates of the tasks with these ids, and draws from them. A part of a checkpoint: `FILE`.

    After a step, for each task i that was sampled, with s_i the share of its episodes that succeeded:

        rate_i <- s_i                                       the first time
        rate_i <- memory * rate_i + (1 - memory) * s_i      later

    A task is in the pool `new` without a rate, `hard` if rate_i < hard, `easy` if rate_i > easy, else `medium`. A step
    draws its tasks without replacement, each with a probability proportional to the weight of its pool among the
    remaining ones: the largest log(u_i) / w_i, u_i uniform in (0, 1) (Efraimidis and Spirakis, 2006). Tasks of pools
    with weight 0 are drawn when no others remain. Draws depend on seed, step and rates only, so a checkpoint stores no
    generator.
    """

    def __init__(self, settings: CurriculumSettings, ids: Sequence[str], seed: int) -> None:
        self.settings, self._ids, self._seed = settings, list(ids), seed
        self._number = {task: number for number, task in enumerate(self._ids)}
        self.rates: FloatArray = np.full(len(ids), np.nan)

    def pools(self) -> IntArray:
        """[n] the pool of each task, as position in `POOLS`."""
        rates, limits = self.rates, self.settings
        return np.select([np.isnan(rates), rates < limits.hard, rates > limits.easy], [0, 1, 3], 2)

    def draw(self, step: int, count: int, taken: Collection[int] = ()) -> list[int]:
        """`count` different tasks by number, none of them in `taken`: those that the step has drawn before."""
        weights = asdict(self.settings.weights)
        weight = np.array([weights[pool] for pool in POOLS])[self.pools()]
        generator = np.random.default_rng(zlib.crc32(f"{self._seed} curriculum {step} {len(taken)}".encode()))
        chance = np.log1p(-generator.random(len(self._ids))) / np.where(weight > 0, weight, 1.0)
        order = np.lexsort((-chance, weight == 0))
        return [int(number) for number in order[~np.isin(order, list(taken))][:count]]

    def record(self, outcomes: Iterable[Report]) -> None:
        """Add the outcomes of a step. A task of which every episode failed to run is not measured."""
        for outcome in outcomes:
            if not outcome.successes:
                continue
            number = self._number[outcome.task]
            share, memory, before = float(np.mean(outcome.successes)), self.settings.memory, self.rates[number]
            self.rates[number] = share if np.isnan(before) else memory * before + (1 - memory) * share

    def metrics(self) -> dict[str, float]:
        """Number of tasks in each pool."""
        counts = np.bincount(self.pools(), minlength=len(POOLS))
        return {f"curriculum/tasks/{pool}": float(count) for pool, count in zip(POOLS, counts, strict=True)}

    def save(self, folder: Path, step: int) -> None:
        """Write the success rates of the tasks that have one."""
        tasks = {self._ids[i]: {"rate": float(self.rates[i])} for i in np.flatnonzero(~np.isnan(self.rates))}
        write_json(folder / FILE, {"step": step, "tasks": tasks})

    def load(self, folder: Path) -> None:
        for task, values in read_json(folder / FILE)["tasks"].items():
            self.rates[self._number[task]] = values["rate"]


class AdvantageMemory:
    """The memory of an algorithm's advantage. A part of a checkpoint: `MEMORY_FILE`."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self.values: Memory = {}

    def recall(self, table: RowTable, keep: bool = True) -> RowTable:
        """The table with the advantage's columns of earlier steps. `keep`: whether later steps remember these rows."""
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

        files = data.train_files, data.val_files
        self.train, self.held_out = (Path(file).read_text(encoding="utf-8").splitlines() for file in files)
        self.size, self._single, self._keeps = int(data.train_batch_size), single, keeps
        self.curriculum: Curriculum | None = None  # `Trainer` sets it
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
        """`count` tasks of a step: those of the curriculum or the next ones; with `single`, none drawn before."""
        first = len(self.drawn)
        if self.curriculum is not None:
            self.drawn += self.curriculum.draw(step, count, self.drawn)
        while len(self.drawn) < first + count:
            self.drawn += [number for number in next(self._batches) if not self._single or number not in self.drawn]
        return self._rows(step, self.drawn[first:], first)

    def _rows(self, step: int, numbers: list[int], first: int) -> list[TaskRow]:
        return [
            {"task": self.train[number], "uid": f"s{step}t{position:05d}", "keep": self._keeps(step, position)}
            for position, number in enumerate(numbers, first)
        ]


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


def in_key_order(reports: Sequence[Report], declared: Collection[str]) -> tuple[Rows, RowTable]:
    """The rows of finished tasks, and their table, both in key order. MarlError without rows. `declared`: the reward
    components that the run sets (`Algorithm.components`)."""
    rows = [row for report in reports for row in report.rows]
    if not rows:
        raise MarlError("every attempt of the step failed: there are no rows to learn from")
    rows.sort(key=lambda row: (row.uid, row.session, row.index))
    table = RowTable.of_records(rows, declared)
    return Rows(table.keys(), [row.tag for row in rows]), table
