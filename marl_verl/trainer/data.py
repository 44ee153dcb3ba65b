"""The tasks of a run: training tasks in the order of the data loader, or of the curriculum, and those held out.

A task is a row: `task` (JSON), `uid` (equal in all runs of the same config) and `keep` (whether its episodes are kept).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from marl_verl.backend.protocol import TaskRow
from marl_verl.config.schema import Curriculum as CurriculumSettings
from marl_verl.trainer.curriculum import Curriculum


class TaskData:
    """Draws tasks.

    Args:
        data: the section `data` of the config.
        single: whether a step draws any number of tasks instead of whole batches, each task at most once.
        keeps: (step, position in the step's batch) -> whether the episodes of the task are kept.
    """

    def __init__(self, data: Any, single: bool, keeps: Callable[[int, int], bool]) -> None:
        import torch
        from torch.utils.data import SequentialSampler
        from torchdata.stateful_dataloader import StatefulDataLoader
        from torchdata.stateful_dataloader.sampler import RandomSampler

        self.train = lines(data.train_files, data.get("train_max_samples", -1))
        self.held_out = lines(data.val_files, data.get("val_max_samples", -1))
        self.size, self._single, self._keeps = int(data.train_batch_size), single, keeps
        self.curriculum: Curriculum | None = None
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
        self._batches: Iterator[list[int]] | None = None
        self.drawn: list[int] = []  # the tasks of the step, by number

    def use_curriculum(self, settings: CurriculumSettings, seed: int) -> None:
        """Draw training tasks by a curriculum from now on."""
        self.curriculum = Curriculum(settings, [str(json.loads(task)["id"]) for task in self.train], seed)

    def next(self, step: int) -> list[TaskRow]:
        """The next batch of the loader; after the last one, the next epoch begins."""
        return self._rows(step, self._next(), 0)

    def draw(self, step: int, count: int) -> list[TaskRow]:
        """`count` tasks of a step: those of the curriculum or the next ones; with `single`, none drawn before."""
        first = len(self.drawn)
        if self.curriculum is not None:
            self.drawn += self.curriculum.draw(step, count, self.drawn)
        while len(self.drawn) < first + count:
            self.drawn += [number for number in self._next() if not self._single or number not in self.drawn]
        return self._rows(step, self.drawn[first:], first)

    def _next(self) -> list[int]:
        for _ in range(2):
            if self._batches is None:
                self._batches = iter(self.loader)
            if (batch := next(self._batches, None)) is not None:
                return [int(number) for number in batch]
            self._batches = None
        raise ValueError(f"{len(self.train)} tasks are fewer than a batch ({self.size})")

    def _rows(self, step: int, numbers: list[int], first: int) -> list[TaskRow]:
        rows: list[TaskRow] = []
        for position, number in enumerate(numbers, first):
            uid, keep = f"s{step}t{position:05d}", self._keeps(step, position)
            rows.append({"task": self.train[number], "uid": uid, "keep": keep})
        return rows


def lines(file: str, most: int = -1) -> list[str]:
    """The tasks of a file, each as JSON; the first `most` unless it is negative."""
    tasks = Path(file).read_text(encoding="utf-8").splitlines()
    return tasks if most < 0 else tasks[:most]
