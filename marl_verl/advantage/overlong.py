"""The overlong penalty: long responses pay, before anything is compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from marl_verl.advantage.part import check_known
from marl_verl.advantage.rows import FloatArray, RowTable
from marl_verl.errors import MarlError
from marl_verl.options import check_type


@dataclass(frozen=True)
class Overlong:
    """p = -min(len - (L - C), C) / C where len > L - C, else 0: from 0 at L - C tokens down to -1 at L and beyond.

    Source: MARS2, arXiv 2602.07848 (there after shaping, before normalisation); DAPO, arXiv 2503.14476, equation 13.

    Attributes:
        L: longest response, in tokens.
        C: tokens before L over which the penalty grows.
    """

    L: int
    C: int

    def __post_init__(self) -> None:
        if not 0 < self.C <= self.L:
            raise MarlError(f"'overlong' needs 0 < C <= L, got L={self.L}, C={self.C}")

    @classmethod
    def of(cls, given: Overlong | Mapping[str, Any] | None) -> Overlong | None:
        """From config: {"L": 32768, "C": 2048}, or null. MarlError for another key, or one that is missing."""
        if given is None or isinstance(given, Overlong):
            return given
        check_type(given, Mapping, "overlong")
        valid = [field.name for field in fields(cls)]
        check_known(given, dict.fromkeys(valid), "overlong")
        for name in valid:
            if name not in given:
                raise MarlError(f"'overlong.{name}' is missing: it is written {{L: 32768, C: 2048}}")
            check_type(given[name], int, f"overlong.{name}")
        return cls(**given)

    def compute(self, table: RowTable) -> FloatArray:
        """The penalty of each row [n], between -1 and 0."""
        over = np.clip(table.length - (self.L - self.C), 0, self.C)
        return -over / self.C
