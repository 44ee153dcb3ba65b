"""The row table: all turns of a batch in columns, with full identity; its groups. What every advantage sees."""

from __future__ import annotations

import difflib
import functools
import numbers
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from marl_verl.advantage import columns
from marl_verl.advantage.columns import FLAGS, BoolArray, FloatArray, IntArray, Labels, Rows, combine, first_true
from marl_verl.advantage.tree import Tree
from marl_verl.episode.row import COUNTS, LABELS
from marl_verl.errors import MarlError, unknown

COLUMNS = (*LABELS, *COUNTS, "rewards", "team_reward", *FLAGS, "value")


SAMPLES = ("row", "session_mean")
BATCH: tuple[str, ...] = ()
TASK = ("uid",)
AGENT = ("uid", "agent")
# with the slot: an agent that acts in two lanes at once has two acts of one turn, which are not alike
TURN = ("uid", "turn", "agent", "slot")
SIBLINGS = ("uid", "parent", "agent", "slot")
OBSERVATION = ("uid", "obs")


@dataclass(frozen=True)
class RowTable:
    """n rows, one per turn.

    Attributes:
        uid: the task instance; the same for all sessions sampled for it.
        session: [n] which of the episodes sampled for the task.
        index: [n] the turn's place in its episode, over all agents; (uid, session, index) names a row.
        turn: [n] the agent's n-th act (within its lane).
        agent, policy: who acted, and the model behind it (policy may be absent).
        slot: which of the agent's acts it is, by number or by the name that the workflow gave it (may be absent).
        node, parent: place in a sampled tree, unique within a uid; the two share their `names`; a root's parent is
            none.
        rewards: component -> [n] float64, 0 where the row does not have it.
        present: component -> [n] bool, whether the row has it.
        team_reward: [n] the team reward of the row's episode, NaN where `rewards` has the component "team" itself. On
            which rows it counts the return decides, see `with_team`.
        length: [n] response tokens.
        padding: [n] bool; rows that only fill a batch. They enter no statistic.
        invalid: [n] bool; acts that the workflow could not use (`team.invalid`).
        values: [n] what a critic expected of the state that the agent faced, before it acted; NaN where there is none.
        extra: further columns of names that rows carried, e.g. `obs`; usable as group keys.
        own: reward components that some part reads by itself: the sum of all components leaves them out.
        declared: reward components that the run makes, also where none of these rows has them.
    """

    uid: Labels
    session: IntArray
    index: IntArray
    turn: IntArray
    agent: Labels
    policy: Labels
    slot: Labels
    node: Labels
    parent: Labels
    rewards: Mapping[str, FloatArray]
    present: Mapping[str, BoolArray]
    team_reward: FloatArray
    length: IntArray
    padding: BoolArray
    invalid: BoolArray
    values: FloatArray
    extra: Mapping[str, Labels]
    own: frozenset[str] = frozenset()
    declared: frozenset[str] = frozenset()

    @classmethod
    def from_rows(cls, rows: Rows, declared: Iterable[str] = ()) -> RowTable:
        """A table from one mapping per row, as in a JSON file of rows.

        Needed keys: uid, session, index, turn, agent, rewards (component -> number), length. Optional: policy, slot,
        node, parent, padding, invalid, value and team_reward (numbers). Any other key becomes a column of names.

        Args:
            declared: the reward components that the run makes (`Algorithm.components`).

        Raises:
            MarlError: no rows, a key that is missing or has the wrong type, two rows with the same (uid, session,
                index), or a row with a `team_reward` and a reward "team".
        """
        if not rows:
            raise MarlError("there are no rows: an advantage needs at least one")
        names = {name: columns.cells(rows, name, str) for name in LABELS}
        tree = [*names["node"], *names["parent"]]
        rewards, present = columns.rewards_of(rows)
        extra = sorted({key for row in rows for key in row} - set(COLUMNS))
        for key in extra:
            if close := difflib.get_close_matches(str(key), FLAGS, n=1, cutoff=0.8):
                raise MarlError(f"unknown column '{key}': did you mean '{close[0]}'?")
        found: dict[str, Any] = {
            **{name: Labels.of(names[name], tree if name in ("node", "parent") else ()) for name in LABELS},
            **{name: np.array(columns.cells(rows, name, numbers.Integral), dtype=np.int64) for name in COUNTS},
            **{name: np.array(columns.cells(rows, name, bool), dtype=np.bool_) for name in FLAGS},
            "rewards": rewards,
            "present": present,
            "team_reward": columns.numbers_or_nan(rows, "team_reward"),
            "values": columns.numbers_or_nan(rows, "value"),
            "extra": {
                key: Labels.of([None if row.get(key) is None else str(row[key]) for row in rows]) for key in extra
            },
        }
        table = cls(**found, declared=frozenset(declared))
        twice = table.present.get("team", np.zeros(len(table), dtype=np.bool_)) & ~np.isnan(table.team_reward)
        if (i := first_true(twice)) is not None:
            raise MarlError(f"row {i} has a 'team_reward' and a reward 'team'. Give one of them.")
        table.order()
        return table

    def __len__(self) -> int:
        return len(self.session)

    def key(self, row: int) -> str:
        """The row's name, "{uid}_{session}_{index}", as in verl's TransferQueue."""
        return f"{self.uid.value(row)}_{self.session[row]}_{self.index[row]}"

    def column(self, name: str) -> Labels | IntArray:
        """A column of names or whole numbers. MarlError with the nearest name if there is no such column."""
        if name in self.extra:
            return self.extra[name]
        if name not in (*LABELS, *COUNTS):
            raise unknown("column", name, [*LABELS, *COUNTS, *self.extra])
        return getattr(self, name)

    def codes(self, column: str) -> IntArray:
        """A column as integers >= -1, for grouping. MarlError as `column`."""
        found = self.column(column)
        return found.codes if isinstance(found, Labels) else found

    def value(self, column: str, row: int) -> str | int | None:
        """What one row has in a column, as the user knows it."""
        found = self.column(column)
        return found.value(row) if isinstance(found, Labels) else int(found[row])

    def component(self, name: str) -> FloatArray:
        """A reward component that every row has, [n]. MarlError with the nearest name, or the first row without it."""
        if (row := first_true(~self.having(name))) is not None:
            raise MarlError(f"row '{self.key(row)}' lacks reward '{name}'")
        return self.rewards[name]

    def having(self, name: str) -> BoolArray:
        """[n] which rows have a reward component. MarlError (nearest offered) if none has and it is not declared."""
        present = self.present.get(name)
        if present is not None and (present.any() or name in self.declared):
            return present
        if name in self.declared:
            return np.zeros(len(self), dtype=np.bool_)
        raise unknown("reward component", name, [c for c, there in self.present.items() if there.any()])

    def lacking(self, present: BoolArray) -> int | None:
        """The first row that is not `present` [n] while another row of its agent is."""
        having = np.bincount(self.agent.codes, weights=present)[self.agent.codes] > 0
        return first_true(having & ~present)

    def with_team(self, counts: BoolArray) -> RowTable:
        """The table with its episodes' team rewards as component "team" of their rows.

        Args:
            counts: [n] the rows on which it counts; on the others of an episode it is 0.
        """
        recorded = ~np.isnan(self.team_reward)
        team = np.where(recorded, np.where(counts, self.team_reward, 0.0), self.rewards.get("team", 0.0))
        present = recorded | self.present.get("team", False)
        rewards, has = {**self.rewards, "team": team}, {**self.present, "team": present}
        return replace(self, rewards=rewards, present=has, team_reward=np.full(len(self), np.nan))

    def with_component(self, name: str, values: FloatArray) -> RowTable:
        """The table with one more reward component. MarlError if rows have one of that name already."""
        if (row := first_true(self.present.get(name, np.zeros(1, np.bool_)))) is not None:
            raise MarlError(f"row '{self.key(row)}' has a reward '{name}' already, which was to be computed")
        everywhere = np.ones(len(self), dtype=np.bool_)
        return replace(self, rewards={**self.rewards, name: values}, present={**self.present, name: everywhere})

    def setting_aside(self, names: Iterable[str]) -> RowTable:
        """The table where the sum of all components leaves these out."""
        return replace(self, own=self.own | frozenset(names))

    @functools.cached_property
    def tree(self) -> Tree:
        """The tree that `node` and `parent` make. MarlError as `Tree.of`."""
        return Tree.of(self.uid, self.node, self.parent, self.key)

    def order(self) -> IntArray:
        """The rows that are not padding, sorted by (uid, session, index): reductions in this order give the same bits
        however the batch was shuffled. MarlError if two rows have the same key."""
        rows = np.flatnonzero(~self.padding)
        keys = np.stack([self.uid.codes[rows], self.session[rows], self.index[rows]])
        order = np.lexsort(keys[::-1])
        rows, keys = rows[order], keys[:, order]
        if (twice := first_true((keys[:, 1:] == keys[:, :-1]).all(axis=0))) is not None:
            raise MarlError(f"two rows have the key '{self.key(int(rows[twice]))}'")
        return rows

    def take(self, rows: IntArray) -> RowTable:
        """The table of these rows, in this order."""
        return replace(self, **{field.name: _taken(getattr(self, field.name), rows) for field in fields(self)})

    def to_rows(self) -> list[dict[str, Any]]:
        """One JSON-able mapping per row; `from_rows` gives the table back."""
        names = [*LABELS, *COUNTS, *self.extra]
        rows: list[dict[str, Any]] = []
        for i in range(len(self)):
            row: dict[str, Any] = {name: self.value(name, i) for name in names}
            row["rewards"] = {c: float(values[i]) for c, values in self.rewards.items() if self.present[c][i]}
            for name, column in (("team_reward", self.team_reward), ("value", self.values)):
                if not np.isnan(column[i]):
                    row[name] = float(column[i])
            rows.append({**row, "padding": bool(self.padding[i]), "invalid": bool(self.invalid[i])})
        return rows


def check_shared(table: RowTable, values: FloatArray, ids: IntArray, what: str) -> None:
    """MarlError unless rows with the same id [n] have the same value [n]. `what` says what they share."""
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    shared = first[inverse.reshape(-1)]
    if (row := first_true(values != values[shared])) is not None:
        other = int(shared[row])
        message = f"are {what} and have {values[other]:g} and {values[row]:g}: it is the same for all, and counts once"
        raise MarlError(f"rows '{table.key(other)}' and '{table.key(row)}' {message}")


def _taken(column: Any, rows: IntArray) -> Any:
    """Some rows of a column, or of each of several."""
    if isinstance(column, Mapping):
        return {name: _taken(each, rows) for name, each in column.items()}
    if isinstance(column, Labels):
        return Labels(column.codes[rows], column.names)
    return column[rows] if isinstance(column, np.ndarray) else column


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
