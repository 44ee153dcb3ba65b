"""A training step as a document: what a run stores of its advantages, and what `marl-verl explain` reads."""

from __future__ import annotations

from typing import Any

from marl_verl.advantage import Advantages, RowTable
from marl_verl.algorithms.algorithm import Algorithm


def step_document(name: str, algorithm: Algorithm, table: RowTable, result: Advantages, step: int) -> dict[str, Any]:
    """The document of a training step: `derive` gives `result` back from it, and `advantage` [n] says what it was."""
    return {
        "algorithm": name,
        "options": algorithm.options(),
        "step": step,
        "components": sorted(table.declared),
        "rows": algorithm.placed(table).to_rows(),
        "advantage": result.advantage.tolist(),
    }
