"""The row table: all turns of a batch in columns. The input of every advantage estimator."""

import functools
import math
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any

import msgspec
import numpy as np

from marl_verl.algo.advantage.columns import (
    BoolArray,
    FloatArray,
    IntArray,
    Labels,
    TokenArray,
    computed_columns,
    first_true,
    numbers_or,
    rewards_of,
    token_arrays,
)
from marl_verl.algo.advantage.tree import Tree
from marl_verl.episode.codec import decode
from marl_verl.episode.communication import COSTS
from marl_verl.episode.turn import DIFFERS_AT, Turn, role_of
from marl_verl.errors import MarlError, unknown

LABELS = ("uid", "agent", "policy", "slot", "node", "parent")
"""Columns of names; all but the first two are optional."""
COUNTS = ("session", "index", "turn", "length")
"""Columns of whole numbers."""
FLAGS = ("padding", "invalid", "untrained")
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class JsonRow(msgspec.Struct):
    """A row of a JSON document; see `RowTable.from_rows`."""

    uid: str
    session: Count
    index: Count
    turn: Count
    agent: str
    rewards: dict[str, float]
    length: Count
    policy: str | None = None
    slot: str | None = None
    node: str | None = None
    parent: str | None = None
    team_reward: float | None = None
    value: float | None = None
    padding: bool = False
    invalid: bool = False
    untrained: bool = False
    columns: dict[str, float | list[float] | None] | None = None


@dataclass(frozen=True)
class RowTable:
    """n rows, one per turn.

    Attributes:
        uid: the task instance, shared by all its episodes.
        session: [n] number of the episode of the task.
        index: [n] the turn's position in its episode, over all agents; (uid, session, index) identifies a row.
        turn: [n] number of the agent's act, within its lane.
        agent, policy: the agent that acted and its policy (policy is optional); see `role`.
        slot: the agent's act, by number or by the name that the workflow gave it (optional).
        node, parent: position in a sampled tree, unique within a uid; both share `names`; a root has no parent.
        rewards: component -> [n] float64, 0 where the row lacks it.
        present: component -> [n] bool, whether the row has it.
        team_reward: [n] the team reward of the row's episode, NaN if `rewards` has the component "team". The returns
            decide which rows get it, see `with_team`.
        length: [n] response tokens.
        padding: [n] bool, rows that only fill a batch; they enter no statistic.
        invalid: [n] bool, acts that the workflow marked as invalid (`team.invalid`).
        untrained: [n] bool, rows of agents that are not trained: in no group, and in no return of another agent.
        values: [n] a critic's value of the observation before the act; NaN without one.
        extra: additional columns of names, e.g. `obs`; usable as group columns.
        own: reward components that a part reads itself; they are excluded from the sum of all components.
        declared: reward components that the run sets, even if no row of this table has them.
        numbers: computed column -> [n] float64, NaN where a row lacks it; see `column`.
        tokens: computed column -> [n] arrays with a number per response token, see `token_column`.
        credited: whether the rewards have the components of the algorithm's credits (`Algorithm.credited`).
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
    untrained: BoolArray
    values: FloatArray
    extra: Mapping[str, Labels]
    own: frozenset[str] = frozenset()
    declared: frozenset[str] = frozenset()
    numbers: Mapping[str, FloatArray] = field(default_factory=dict)
    tokens: Mapping[str, TokenArray] = field(default_factory=dict)
    credited: bool = False

    @classmethod
    def of(
        cls, turns: Sequence[Turn], declared: Iterable[str] = (), trained: Container[str] | None = None
    ) -> "RowTable":
        """The table of sampled turns.

        Args:
            declared: the reward components that the run sets (`Algorithm.components`).
            trained: the policies that are trained; None: all.
        """
        continuing = [{} if (at := turn.differs_at) is None else {DIFFERS_AT: at} for turn in turns]
        flags = {
            "padding": [False] * len(turns),
            "invalid": [turn.invalid is not None for turn in turns],
            "untrained": [trained is not None and turn.policy not in trained for turn in turns],
        }
        return cls._of(
            turns,
            declared,
            flags,
            columns=[{**turn.columns, **more} for turn, more in zip(turns, continuing, strict=True)],
            extra={"obs": [turn.obs for turn in turns]},
        )

    @classmethod
    def from_rows(cls, rows: Sequence[Mapping[str, Any]], declared: Iterable[str] = ()) -> "RowTable":
        """Create a table from one mapping per row, as in a JSON file of rows.

        Required keys: uid, session, index, turn, agent, rewards (component -> number), length. Optional: policy, slot,
        node, parent, padding, invalid, untrained, value and team_reward (numbers), and columns (name -> number, or a
        list with a number per response token). Any other key becomes a column of names.

        Args:
            declared: the reward components that the run sets (`Algorithm.components`).

        Raises:
            MarlError: no rows, a key that is missing or has the wrong type, two rows with the same (uid, session,
                index), or a row with a `team_reward` and a reward "team".
        """
        extra = sorted({key for keys in set(map(tuple, rows)) for key in keys} - set(JsonRow.__struct_fields__))
        plain = msgspec.to_builtins(list(rows), enc_hook=lambda value: value.tolist())  # numbers and arrays of NumPy
        records = decode(list[JsonRow], plain, "rows")
        return cls._of(
            records,
            declared,
            {name: [getattr(record, name) for record in records] for name in FLAGS},
            columns=[record.columns or {} for record in records],
            extra={key: [None if row.get(key) is None else str(row[key]) for row in rows] for key in extra},
            values=[record.value for record in records],
        )

    @classmethod
    def _of(
        cls,
        records: Sequence[Turn] | Sequence[JsonRow],
        declared: Iterable[str],
        flags: Mapping[str, Sequence[bool]],
        *,
        columns: Sequence[Mapping[str, Any]],
        extra: Mapping[str, Sequence[str | None]],
        values: Sequence[float | None] | None = None,
    ) -> "RowTable":
        if not records:
            raise MarlError("there are no rows. An advantage needs at least one.")
        names = {name: [getattr(record, name) for record in records] for name in LABELS}
        tree = [*names["node"], *names["parent"]]
        rewards, present = rewards_of([record.rewards for record in records])
        numbers, tokens = computed_columns(columns)
        arrays: dict[str, Any] = {
            **{name: Labels.of(names[name], tree if name in ("node", "parent") else ()) for name in LABELS},
            **{name: np.array([getattr(record, name) for record in records], dtype=np.int64) for name in COUNTS},
            **{name: np.array(flag, dtype=np.bool_) for name, flag in flags.items()},
        }
        table = cls(
            **arrays,
            rewards=rewards,
            present=present,
            team_reward=numbers_or(math.nan, [record.team_reward for record in records]),
            values=numbers_or(math.nan, [None] * len(records) if values is None else values),
            extra={name: Labels.of(column) for name, column in extra.items()},
            numbers=numbers,
            tokens=tokens,
            declared=frozenset(declared),
        )
        twice = table.present.get("team", np.zeros(len(table), dtype=np.bool_)) & ~np.isnan(table.team_reward)
        if (i := first_true(twice)) is not None:
            raise MarlError(f"row {i} has a 'team_reward' and a reward 'team'. Give one of them.")
        table.order()
        return table

    def __len__(self) -> int:
        return len(self.session)

    def key(self, row: int) -> str:
        """The key of a row, "{uid}_{session}_{index}", as in verl's TransferQueue."""
        return f"{self.uid.value(row)}_{self.session[row]}_{self.index[row]}"

    def keys(self) -> list[str]:
        """[n] the key of each row, as in `key`."""
        rows = zip(self.uid.codes.tolist(), self.session.tolist(), self.index.tolist(), strict=True)
        return [f"{self.uid.names[uid]}_{session}_{index}" for uid, session, index in rows]

    def column(self, name: str) -> FloatArray:
        """[n] a column that a column function computed (`Algorithm.columns`). MarlError with the nearest name for an
        unknown column, or with the first row that lacks it; `numbers` has NaN for such rows."""
        if name not in self.numbers:
            raise unknown("column", name, self.numbers)
        lacking = ~np.isfinite(self.numbers[name]) & ~self.padding
        if (row := first_true(lacking)) is not None:
            raise MarlError(f"row '{self.key(row)}' lacks column '{name}'")
        return self.numbers[name]

    def token_column(self, name: str) -> TokenArray:
        """[n] a computed column with a number per response token: arrays [length]. MarlError as in `column`."""
        if name not in self.tokens:
            raise unknown("column per token", name, self.tokens)
        for row, values in enumerate(self.tokens[name]):
            if not self.padding[row] and (len(values) != self.length[row] or not np.isfinite(values).all()):
                numbers = f"{len(values)} numbers in column '{name}', for {self.length[row]} response tokens"
                raise MarlError(f"row '{self.key(row)}' has {numbers}: one finite number per token is required")
        return self.tokens[name]

    def identifiers(self, name: str) -> Labels | IntArray:
        """A column of names or integers by which rows are grouped: column "agent" has the agents' roles. MarlError with
        the nearest name for an unknown column."""
        if name == "agent":
            return self.role
        if name in self.extra:
            return self.extra[name]
        if name not in (*LABELS, *COUNTS):
            raise unknown("column", name, [*LABELS, *COUNTS, *self.extra])
        column: Labels | IntArray = getattr(self, name)
        return column

    @functools.cached_property
    def role(self) -> Labels:
        """The agents' roles: the agent, of a spawned one ("worker#2") the agent of the config ("worker")."""
        names, codes = np.unique([*map(role_of, self.agent.names)], return_inverse=True)
        return Labels(codes[self.agent.codes], tuple(names.tolist()))

    def codes(self, column: str) -> IntArray:
        """A column as integers >= -1, for grouping. MarlError as in `identifiers`."""
        identifiers = self.identifiers(column)
        return identifiers.codes if isinstance(identifiers, Labels) else identifiers

    def value(self, column: str, row: int) -> str | int | None:
        """The value of a row in a column: a name or an integer."""
        identifiers = self.identifiers(column)
        return identifiers.value(row) if isinstance(identifiers, Labels) else int(identifiers[row])

    def computed(self, row: int) -> dict[str, float | list[float]]:
        """The computed columns of a row, as in `from_rows`."""
        computed = {**self.numbers, **self.tokens}
        values = {name: column[row].tolist() for name, column in computed.items()}
        return {name: value for name, value in values.items() if not np.isnan(value).any()}

    def component(self, name: str) -> FloatArray:
        """[n] a reward component that all rows have. MarlError with the nearest name, or the first row without it."""
        if (row := first_true(~self.having(name))) is not None:
            raise MarlError(f"row '{self.key(row)}' lacks reward '{name}'")
        return self.rewards[name]

    def having(self, name: str) -> BoolArray:
        """[n] bool, rows with a reward component. MarlError (with the nearest) if none has and it is undeclared."""
        present = self.present.get(name)
        if present is not None and (present.any() or name in self.declared):
            return present
        if name in self.declared:
            return np.zeros(len(self), dtype=np.bool_)
        raise unknown("reward component", name, [c for c, there in self.present.items() if there.any()])

    def lacking(self, present: BoolArray) -> int | None:
        """The first row that is not `present` [n] although another row of its role is, or None."""
        having = np.bincount(self.role.codes, weights=present)[self.role.codes] > 0
        return first_true(having & ~present)

    def with_team(self, counts: BoolArray) -> "RowTable":
        """The table with its episodes' team rewards as component "team" of their rows.

        Args:
            counts: [n] bool, the rows that get the team reward and the costs of the episode; other rows get 0.
        """
        recorded = ~np.isnan(self.team_reward)
        team = np.where(recorded, np.where(counts, self.team_reward, 0.0), self.rewards.get("team", 0.0))
        present = recorded | self.present.get("team", False)
        rewards, has = {**self.rewards, "team": team}, {**self.present, "team": present}
        rewards |= {name: np.where(counts, rewards[name], 0.0) for name in COSTS if name in rewards}
        return replace(self, rewards=rewards, present=has, team_reward=np.full(len(self), np.nan))

    def with_component(self, name: str, values: FloatArray) -> "RowTable":
        """The table with an additional reward component. MarlError if rows already have one of that name."""
        if (row := first_true(self.present.get(name, np.zeros(1, np.bool_)))) is not None:
            raise MarlError(f"row '{self.key(row)}' already has a reward '{name}', the name of a computed component")
        everywhere = np.ones(len(self), dtype=np.bool_)
        return replace(self, rewards={**self.rewards, name: values}, present={**self.present, name: everywhere})

    def without(self, components: Collection[str]) -> "RowTable":
        """The table without some reward components."""
        kept = [name for name in self.rewards if name not in components]
        rewards, present = {name: self.rewards[name] for name in kept}, {name: self.present[name] for name in kept}
        return replace(self, rewards=rewards, present=present)

    def with_columns(self, columns: Mapping[str, FloatArray]) -> "RowTable":
        """The table with these computed columns, in place of those of the same names."""
        return replace(self, numbers={**self.numbers, **columns})

    def setting_aside(self, names: Iterable[str]) -> "RowTable":
        """The table with these components excluded from the sum of all components."""
        return replace(self, own=self.own | frozenset(names))

    @property
    def compared(self) -> IntArray:
        """The rows that are compared: those of trained agents; all in a tree, or if none is of a trained agent."""
        rows: IntArray = np.flatnonzero(~self.untrained)
        everything = not len(rows) or (self.parent.codes >= 0).any()
        return np.arange(len(self)) if everything else rows

    @functools.cached_property
    def tree(self) -> Tree:
        """The tree defined by `node` and `parent`. MarlError as in `Tree.of`."""
        return Tree.of(self.uid, self.node, self.parent, self.key)

    def order(self) -> IntArray:
        """The rows that are not padding, sorted by (uid, session, index), so that reductions are bitwise independent of
        the order of the batch. MarlError if two rows have the same key."""
        rows: IntArray = np.flatnonzero(~self.padding)
        keys = np.stack([self.uid.codes[rows], self.session[rows], self.index[rows]])
        ascending = np.zeros(max(len(rows) - 1, 0), dtype=np.bool_)
        for key in keys[::-1]:
            ascending = (key[1:] > key[:-1]) | ((key[1:] == key[:-1]) & ascending)
        if ascending.all():  # the usual case: a trainer's batch is sorted already
            return rows
        order = np.lexsort(keys[::-1])
        rows, keys = rows[order], keys[:, order]
        if (twice := first_true((keys[:, 1:] == keys[:, :-1]).all(axis=0))) is not None:
            raise MarlError(f"two rows have the key '{self.key(int(rows[twice]))}'")
        return rows

    def take(self, rows: IntArray) -> "RowTable":
        """The table of these rows, in this order."""
        return replace(self, **{field.name: _taken(getattr(self, field.name), rows) for field in fields(self)})

    def to_rows(self) -> list[dict[str, Any]]:
        """One JSON-serialisable mapping per row; the inverse of `from_rows`."""
        names = [*LABELS, *COUNTS, *self.extra]
        rows: list[dict[str, Any]] = []
        for i in range(len(self)):
            row: dict[str, Any] = {name: self.value(name, i) for name in names} | {"agent": self.agent.value(i)}
            row["rewards"] = {c: float(values[i]) for c, values in self.rewards.items() if self.present[c][i]}
            for name, column in (("team_reward", self.team_reward), ("value", self.values)):
                if not np.isnan(column[i]):
                    row[name] = float(column[i])
            if computed := self.computed(i):
                row["columns"] = computed
            row |= {"untrained": True} if self.untrained[i] else {}
            rows.append({**row, "padding": bool(self.padding[i]), "invalid": bool(self.invalid[i])})
        return rows


def _taken(column: Any, rows: IntArray) -> Any:
    """Some rows of a column, or of each column of a mapping."""
    if isinstance(column, Mapping):
        return {name: _taken(part, rows) for name, part in column.items()}
    if isinstance(column, Labels):
        return Labels(column.codes[rows], column.names)
    return column[rows] if isinstance(column, np.ndarray) else column


ABSENT: Mapping[str, Callable[[int], Any]] = {
    "rewards": np.zeros,
    "present": lambda n: np.zeros(n, dtype=np.bool_),
    "numbers": lambda n: np.full(n, math.nan),
    "tokens": lambda n: token_arrays([[math.nan]] * n, "an absent column"),
    "extra": lambda n: Labels(np.full(n, -1), ()),
}
"""A column of n rows for a table that lacks a name which another table has."""


def concat(tables: Sequence[RowTable]) -> RowTable:
    """The rows of tables sorted by (uid, session, index): equal to `RowTable.from_rows` of all of them in this order.

    Raises:
        MarlError: two rows with the same key, or a computed column that has a number per row in one table and per token
            in another.
    """
    sizes = [len(table) for table in tables]
    columns: dict[str, Any] = {}
    for name in (column.name for column in fields(RowTable)):
        parts = [getattr(table, name) for table in tables]
        if name in ABSENT:
            names = sorted({key for part in parts for key in part})
            filled = [
                {**{key: ABSENT[name](size) for key in names if key not in part}, **part}
                for part, size in zip(parts, sizes, strict=True)
            ]
            columns[name] = {key: _joined([part[key] for part in filled]) for key in names}
        else:
            columns[name] = _joined(parts)
    if both := columns["numbers"].keys() & columns["tokens"].keys():
        message = f"column '{min(both)}' has one number in some rows and a list of numbers in others"
        raise MarlError(f"{message}. Return one of them for every turn.")
    table = RowTable(**columns)
    return table.take(table.order())


def _joined(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], bool):
        return all(parts)
    if isinstance(parts[0], frozenset):
        return frozenset().union(*parts)
    return Labels.joined(parts) if isinstance(parts[0], Labels) else np.concatenate(parts)
