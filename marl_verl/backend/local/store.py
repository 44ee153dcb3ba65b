"""The rows' store of a run in one process: a dictionary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from marl_verl.backend.learning.batches import jagged
from marl_verl.backend.protocol import Column


class MemoryStore:
    """A `RowStore`."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, torch.Tensor]] = {}

    def put(self, keys: Sequence[str], fields: Mapping[str, Column]) -> None:
        for name, column in fields.items():
            values = column.unbind() if isinstance(column, torch.Tensor) else column
            for key, value in zip(keys, values, strict=True):
                self.rows.setdefault(key, {})[name] = value

    def get(self, keys: Sequence[str], names: Sequence[str]) -> dict[str, torch.Tensor]:
        return {name: jagged([self.rows[key][name] for key in keys]) for name in names}

    def remove(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.rows.pop(key, None)
