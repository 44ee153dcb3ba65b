"""Groups and samples of a table's rows: which rows are compared, and which count as one."""

from collections.abc import Sequence
from typing import Annotated

import numpy as np

from marl_verl.algo.advantage.columns import FloatArray, IntArray, combine, first_true
from marl_verl.algo.advantage.rows import RowTable
from marl_verl.errors import MarlError
from marl_verl.options import Names

BATCH: tuple[str, ...] = ()
TASK = ("uid",)
AGENT = ("uid", "agent")
# with the slot, since an agent in two concurrent lanes has two different acts with the same turn number
TURN = ("uid", "turn", "agent", "slot")
SIBLINGS = ("uid", "parent", "agent", "slot")
OBSERVATION = ("uid", "obs")
GROUPS = {
    **{"batch": BATCH, "task": TASK, "agent": AGENT},
    **{"turn": TURN, "siblings": SIBLINGS, "observation": OBSERVATION},
}
"""Names of groups in config."""
Group = Annotated[tuple[str, ...], Names(GROUPS)]
"""The columns that define a group; in config also one of the names."""


def group_ids(table: RowTable, columns: Sequence[str]) -> IntArray:
    """[n] ids 0..G-1: two rows have the same id if and only if they agree in all `columns`; () is the whole batch."""
    return combine([table.codes(column) for column in columns], len(table))


def sample_ids(table: RowTable, group: IntArray, sample: str) -> IntArray:
    """[n] ids 0..S-1 of samples: every row ("row"), or all rows of one session in a group ("session_mean")."""
    if sample == "row":
        return np.arange(len(table), dtype=np.int64)
    return combine([group, table.uid.codes, table.session], len(table))


def session_weights(table: RowTable, unit: str) -> FloatArray:
    """[n] w = (N / S) / n_s: of session s with n_s of its policy's N tokens or rows (`unit`) in S sessions."""
    size = table.length.astype(np.float64) if unit == "tokens" else np.ones(len(table))
    policy = combine([table.policy.codes], len(table))
    session = combine([policy, table.uid.codes, table.session], len(table))
    sessions = np.bincount(policy[np.unique(session, return_index=True)[1]])
    weights: FloatArray = (np.bincount(policy, size) / sessions)[policy] / np.bincount(session, size)[session]
    return weights


def check_shared(table: RowTable, values: FloatArray, ids: IntArray, what: str) -> None:
    """Raise MarlError unless rows with the same id [n] have the same value [n]. `what` describes rows of one id."""
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    shared = first[inverse.reshape(-1)]
    if (row := first_true(values != values[shared])) is not None:
        other = int(shared[row])
        message = f"are {what} and have {values[other]:g} and {values[row]:g}: the shared reward must be the same"
        raise MarlError(f"rows '{table.key(other)}' and '{table.key(row)}' {message}")
