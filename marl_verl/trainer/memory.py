"""What an advantage remembers of earlier steps (`Estimator.recall`): the numbers, and their part of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

from marl_verl.algo.advantage import Memory, RowTable
from marl_verl.algo.algorithms import Algorithm
from marl_verl.files import read_json

FILE = "memory.json"


class AdvantageMemory:
    """The memory of an algorithm's advantage. A part of a checkpoint: `FILE`."""

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
        """Write the memory."""
        folder.mkdir(parents=True)
        document = {"step": step, "advantage": self.algorithm.advantage.name, "values": self.values}
        (folder / FILE).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")

    def load(self, folder: Path) -> None:
        """Continue from a saved memory."""
        self.values = read_json(folder / FILE)["values"]
