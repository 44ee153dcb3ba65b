"""Groups: which rows are compared with each other; and samples: what counts once in a group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from marl_verl.advantage.columns import IntArray, combine
from marl_verl.advantage.rows import RowTable
from marl_verl.errors import MarlError

SAMPLES = ("row", "session_mean")

BATCH: tuple[str, ...] = ()
TASK = ("uid",)
AGENT = ("uid", "agent")
# with the slot: an agent that acts in two lanes at once has two acts of one turn, which are not alike
TURN = ("uid", "turn", "agent", "slot")
SIBLINGS = ("uid", "parent", "agent", "slot")
OBSERVATION = ("uid", "obs")


def check_columns(option: str, columns: object) -> tuple[str, ...]:
    """The columns of a group as a tuple; MarlError if they are no list of texts, or name one twice."""
    if not isinstance(columns, Sequence) or isinstance(columns, str):
        raise MarlError(f"'{option}' is a list of columns, got {columns!r}")
    for column in columns:
        if not isinstance(column, str):
            raise MarlError(f"'{option}' is a list of columns, got {column!r} in it")
        if list(columns).count(column) > 1:
            raise MarlError(f"'{option}' has the column '{column}' twice")
    return tuple(columns)


def group_ids(table: RowTable, columns: Sequence[str]) -> IntArray:
    """[n] ids 0..G-1: two rows share one exactly if they agree in all `columns`; () is the whole batch.

    MarlError (with the nearest name) for a column that does not exist.
    """
    return combine([table.codes(column) for column in columns], len(table))


def sample_ids(table: RowTable, group: IntArray, sample: str) -> IntArray:
    """[n] ids 0..S-1 of what counts once: every row ("row"), or all rows of one session in a group ("session_mean")."""
    if sample == "row":
        return np.arange(len(table), dtype=np.int64)
    return combine([group, table.uid.codes, table.session], len(table))
