"""The base of what has training workers of verl: a policy, and a critic beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class TrainingWorkers:
    """Training workers with one rank, of this object alone; a backend overrides what is different there."""

    workers: Any

    @property
    def data_parallel_size(self) -> int:
        """Number of data-parallel ranks; each processes a part of the rows."""
        return 1

    @contextmanager
    def turn(self) -> Iterator[None]:
        """The time in which the training workers belong to this policy or critic."""
        yield

    def save(self, folder: Path, step: int) -> None:
        """Write model, optimiser and learning-rate schedule below `folder`; for a policy a Hugging Face folder, too."""
        with self.turn():
            self.workers.save_checkpoint(str(folder), None, step, max_ckpt_to_keep=None)

    def load(self, folder: Path) -> None:
        """Load the files that `save` wrote."""
        with self.turn():
            self.workers.load_checkpoint(local_path=str(folder), del_local_after_load=False)
