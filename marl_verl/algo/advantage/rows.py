"""The row table: all turns of a batch in columns, the input of every advantage estimator; and groups of its rows."""

import functools
import math
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Annotated, Any

import msgspec
import numpy as np

from marl_verl.algo.advantage.columns import (
    BoolArray,
    FloatArray,
    IntArray,
    Labels,
    TokenArray,
    Tree,
    by_name,
    combine,
    first_true,
    numbers_or,
    read_only,
    token_arrays,
)
from marl_verl.episode.codec import decode
from marl_verl.episode.communication import AMOUNTS
from marl_verl.episode.turn import DIFFERS_AT, Turn, role_of
from marl_verl.errors import MarlError, check_known
from marl_verl.options import Names

LABELS = ("uid", "agent", "policy", "slot", "node", "parent", "obs")
"""Columns of names; all but the first two are optional."""
COUNTS = ("session", "index", "turn", "length")  # columns of whole numbers
FLAGS = ("invalid", "untrained")
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]

BATCH: tuple[str, ...] = ()
TASK = ("uid",)
AGENT = ("uid", "agent")
# with the slot, since an agent in two concurrent lanes has two different acts with the same turn number
TURN = ("uid", "turn", "agent", "slot")
SIBLINGS = ("uid", "parent", "agent", "slot")
OBSERVATION = ("uid", "obs")
GROUPS = {"batch": BATCH, "task": TASK, "agent": AGENT, "turn": TURN, "siblings": SIBLINGS, "observation": OBSERVATION}
"""Names of groups in config."""
Group = Annotated[tuple[str, ...], Names(GROUPS)]
"""The columns that define a group; in config also one of the names."""


class TableRow(msgspec.Struct, gc=False):
    """A row of a table, as rollout workers send it, and as JSON documents have it: the columns of `RowTable`; and the
    `tag`, what an update reads of a row without its tensors."""

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
    obs: str | None = None
    team_reward: float | None = None
    value: float | None = None
    invalid: bool = False
    untrained: bool = False
    columns: dict[str, float | list[float] | None] | None = None
    tag: dict[str, Any] = {}

    @classmethod
    def of(cls, turn: Turn, trained: Container[str] | None = None, tag: dict[str, Any] | None = None) -> "TableRow":
        """The row of a sampled turn. `trained`: the policies that are trained; None: all."""
        differs = {} if turn.differs_at is None else {DIFFERS_AT: turn.differs_at}
        return cls(
            **{name: getattr(turn, name) for name in (*LABELS, *COUNTS, "rewards", "team_reward")},
            invalid=turn.invalid is not None,
            untrained=trained is not None and turn.policy not in trained,
            columns={**turn.columns, **differs},
            tag=tag or {},
        )


@dataclass(frozen=True)
class RowTable:
    """n rows, one per turn; (uid, session, index) identifies a row. The arrays become read-only."""

    uid: Labels  # the task instance, shared by all its episodes
    session: IntArray  # [n] number of the episode of the task
    index: IntArray  # [n] the turn's position in its episode, over all agents
    turn: IntArray  # [n] number of the agent's act, within its lane
    agent: Labels  # who acted; see `role`
    policy: Labels
    slot: Labels  # the agent's act, by number or by the name that the workflow gave it
    node: Labels  # position in a sampled tree, unique within a uid
    parent: Labels  # the node before, none at a root; same names as `node`
    obs: Labels  # the observation before the act: equal for equal observations
    rewards: Mapping[str, FloatArray]  # component -> [n], 0 where the row lacks it
    present: Mapping[str, BoolArray]  # component -> [n] whether the row has it
    team_reward: FloatArray  # [n] of the episode, until `with_team` makes it component "team" of some rows; then NaN
    length: IntArray  # [n] response tokens
    invalid: BoolArray  # [n] acts that the workflow marked as invalid (`team.invalid`)
    untrained: BoolArray  # [n] of agents that are not trained: in no group, and in no return of another agent
    values: FloatArray  # [n] a critic's value of the observation before the act; NaN without one
    declared: frozenset[str] = frozenset()  # reward components that the run sets, even if no row here has them
    own: frozenset[str] = frozenset()  # components that a part reads itself: not in the sum of all components
    numbers: Mapping[str, FloatArray] = field(default_factory=dict)  # computed column -> [n], NaN where absent
    tokens: Mapping[str, TokenArray] = field(default_factory=dict)  # computed column -> [n] a number per token

    def __post_init__(self) -> None:
        read_only(vars(self))

    @classmethod
    def of(
        cls, turns: Sequence[Turn], declared: Iterable[str] = (), trained: Container[str] | None = None
    ) -> "RowTable":
        """The table of sampled turns. `trained`: the policies that are trained; None: all."""
        return cls.of_records([TableRow.of(turn, trained) for turn in turns], declared)

    @classmethod
    def from_rows(cls, rows: Sequence[Mapping[str, Any]], declared: Iterable[str] = ()) -> "RowTable":
        """The table of one mapping per row, as in a JSON file. MarlError for a key of `TableRow` that is missing or has
        the wrong type; others are ignored."""
        return cls.of_records(decode(list[TableRow], list(rows), "rows"), declared)

    @classmethod
    def of_records(cls, records: Sequence[TableRow], declared: Iterable[str] = ()) -> "RowTable":
        """The table of rows; `declared`: the reward components that the run sets (`Algorithm.components`). MarlError:
        no rows, or two with the same (uid, session, index)."""
        if not records:
            raise MarlError("there are no rows. An advantage needs at least one.")
        values: dict[str, Any] = {name: [*map(attrgetter(name), records)] for name in TableRow.__struct_fields__}
        rewards, computed = by_name(values["rewards"]), by_name([columns or {} for columns in values["columns"]])
        tokens = {name for name, column in computed.items() if any(isinstance(value, list) for value in column)}
        arrays: dict[str, Any] = {
            **{name: Labels.of(values[name]) for name in LABELS},
            **{name: Labels.of(values[name], values["node"] + values["parent"]) for name in ("node", "parent")},
            **{name: np.array(values[name], dtype=np.int64) for name in COUNTS},
            **{name: np.array(values[name], dtype=np.bool_) for name in FLAGS},
        }
        table = cls(
            **arrays,
            rewards={name: numbers_or(0.0, column) for name, column in rewards.items()},
            present={name: np.array([value is not None for value in column]) for name, column in rewards.items()},
            team_reward=numbers_or(math.nan, values["team_reward"]),
            values=numbers_or(math.nan, values["value"]),
            numbers={name: numbers_or(math.nan, column) for name, column in computed.items() if name not in tokens},
            tokens={name: token_arrays(column) for name, column in computed.items() if name in tokens},
            declared=frozenset(declared),
        )
        key, count = Counter(table.keys()).most_common(1)[0]
        if count > 1:
            raise MarlError(f"two rows have the key '{key}'")
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
        """[n] a column that a column function computed (`Algorithm.columns`). MarlError for an unknown column, or with
        the first row that lacks it; `numbers` has NaN for such rows."""
        check_known("column", name, self.numbers)
        self.check(np.isfinite(self.numbers[name]), f"lacks column '{name}'")
        return self.numbers[name]

    def token_column(self, name: str) -> TokenArray:
        """[n] a computed column with a number per response token: arrays [length]. MarlError as in `column`."""
        check_known("column", name, self.tokens)
        values = self.tokens[name]
        right = [len(row) == length and np.isfinite(row).all() for row, length in zip(values, self.length, strict=True)]
        self.check(np.array(right), f"needs a finite number per response token in column '{name}'")
        return values

    def codes(self, column: str) -> IntArray:
        """A column of names or numbers as integers >= -1, by which rows are grouped: see `_identity` for "agent"."""
        values = self._identity(column)
        return values.codes if isinstance(values, Labels) else values

    def value(self, column: str, row: int) -> str | int | None:
        """The value of a row in a column, as in `codes`: a name or a number."""
        values = self._identity(column)
        return values.value(row) if isinstance(values, Labels) else int(values[row])

    @functools.cached_property
    def role(self) -> Labels:
        """The agents' roles: the agent, of a spawned one ("worker#2") the agent of the config ("worker")."""
        names, codes = np.unique([*map(role_of, self.agent.names)], return_inverse=True)
        return Labels(codes[self.agent.codes], tuple(names.tolist()))

    def computed(self, row: int) -> dict[str, float | list[float]]:
        """The computed columns that a row has, as in `TableRow`."""
        numbers = {name: float(column[row]) for name, column in self.numbers.items() if not np.isnan(column[row])}
        return numbers | {name: column[row].tolist() for name, column in self.tokens.items() if len(column[row])}

    def component(self, name: str) -> FloatArray:
        """[n] a reward component that all rows have."""
        self.check(self.having(name), f"lacks reward '{name}'")
        return self.rewards[name]

    def having(self, name: str) -> BoolArray:
        """[n] bool, rows with a reward component. MarlError if none has it and it is undeclared."""
        present = self.present.get(name, np.zeros(len(self), dtype=np.bool_))
        if not present.any() and name not in self.declared:
            check_known("reward component", name, [c for c, there in self.present.items() if there.any()])
        return present

    def check(self, right: BoolArray, problem: str) -> None:
        """MarlError with the first row that is not `right` [n]."""
        if (row := first_true(~right)) is not None:
            raise MarlError(f"row '{self.key(row)}' {problem}")

    def check_finite(self, values: FloatArray, label: str, of: Mapping[str, FloatArray] = {}) -> None:
        """MarlError with the first row whose value [n] is not finite, and what it was computed `of`: name -> [n]."""
        if (row := first_true(~np.isfinite(values))) is not None:
            numbers = {name: column[row] for name, column in of.items()}
            causes = {name: number for name, number in numbers.items() if not np.isfinite(number)} or numbers
            why = ", ".join(f"'{name}' is {number}" for name, number in causes.items())
            where = f"row '{self.key(row)}' (agent '{self.agent.value(row)}') is {values[row]}"
            raise MarlError(f"the {label} of {where}: {why or 'a number is not finite or too large for float64'}")

    def check_roles(self, present: BoolArray, lacks: str) -> None:
        """MarlError for a row that is not `present` [n] although another row of its role is."""
        having = present.all() or np.bincount(self.role.codes, weights=present)[self.role.codes] > 0
        self.check(present | ~having, f"lacks {lacks}, which other rows of its agent have")

    def check_shared(self, values: FloatArray, ids: IntArray, label: str) -> None:
        """MarlError unless rows with the same id [n] have the same value [n]; `label` names the rows of one id."""
        _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
        shared = first[inverse.reshape(-1)]
        if (row := first_true(values != values[shared])) is not None:
            other = int(shared[row])
            message = f"are {label} and have {values[other]:g} and {values[row]:g}: the shared reward must be the same"
            raise MarlError(f"rows '{self.key(other)}' and '{self.key(row)}' {message}")

    def with_team(self, counts: BoolArray) -> "RowTable":
        """The table with its episodes' team rewards as component "team". Rows that are not in `counts` [n] get 0 for it
        and for the amounts of the episode."""
        recorded = ~np.isnan(self.team_reward)
        team = np.where(recorded, np.where(counts, self.team_reward, 0.0), self.rewards.get("team", 0.0))
        present = recorded | self.present.get("team", False)
        rewards, has = {**self.rewards, "team": team}, {**self.present, "team": present}
        rewards |= {name: np.where(counts, rewards[name], 0.0) for name in AMOUNTS if name in rewards}
        return replace(self, rewards=rewards, present=has, team_reward=np.full(len(self), np.nan))

    def with_component(self, name: str, values: FloatArray) -> "RowTable":
        """The table with a reward component on every row, in place of one of that name."""
        everywhere = np.ones(len(self), dtype=np.bool_)
        return replace(self, rewards={**self.rewards, name: values}, present={**self.present, name: everywhere})

    @property
    def compared(self) -> IntArray:
        """The rows that are compared: those of trained agents; all in a tree, or if none is of a trained agent."""
        everything = self.untrained.all() or (self.parent.codes >= 0).any()
        return np.arange(len(self)) if everything else np.flatnonzero(~self.untrained)

    @functools.cached_property
    def tree(self) -> Tree:
        """The tree defined by `node` and `parent`. MarlError as in `Tree.of`."""
        return Tree.of(self.uid, self.node, self.parent, self.key)

    def order(self) -> IntArray:
        """The rows sorted by (uid, session, index): reductions in this order are bitwise independent of the batch's."""
        return np.lexsort((self.index, self.session, self.uid.codes))

    def take(self, rows: IntArray) -> "RowTable":
        """The table of these rows, in this order."""
        return replace(self, **{field.name: _taken(getattr(self, field.name), rows) for field in fields(self)})

    def to_rows(self) -> list[dict[str, Any]]:
        """One JSON-serialisable mapping per row; the inverse of `from_rows`."""
        rows: list[dict[str, Any]] = []
        for i in range(len(self)):
            row: dict[str, Any] = {name: self.value(name, i) for name in (*LABELS, *COUNTS)}
            row |= {"agent": self.agent.value(i), "invalid": bool(self.invalid[i])}
            row["rewards"] = {c: float(values[i]) for c, values in self.rewards.items() if self.present[c][i]}
            numbers = {"team_reward": self.team_reward[i], "value": self.values[i]}
            row |= {name: float(number) for name, number in numbers.items() if not np.isnan(number)}
            row |= {"columns": computed} if (computed := self.computed(i)) else {}
            rows.append(row | ({"untrained": True} if self.untrained[i] else {}))
        return rows

    def _identity(self, column: str) -> Labels | IntArray:
        check_known("column", column, (*LABELS, *COUNTS))
        # in a tree, candidates of two agents of a role are of different states: each agent has groups of its own
        return self.role if column == "agent" and not self.node.names else getattr(self, column)


def _taken(column: Any, rows: IntArray) -> Any:
    """Some rows of a column, or of each column of a mapping."""
    if isinstance(column, Mapping):
        return {name: _taken(part, rows) for name, part in column.items()}
    if isinstance(column, Labels):
        return Labels(column.codes[rows], column.names)
    return column[rows] if isinstance(column, np.ndarray) else column


def group_ids(table: RowTable, columns: Sequence[str]) -> IntArray:
    """[n] ids 0..G-1: two rows have the same id if and only if they agree in all `columns`; () is the whole batch."""
    return combine([table.codes(column) for column in columns], len(table))


def sample_ids(table: RowTable, group: IntArray, sample: str) -> IntArray:
    """[n] ids 0..S-1 of samples: every row ("row"), or all rows of one session in a group ("session_mean")."""
    if sample == "row":
        return np.arange(len(table), dtype=np.int64)
    return combine([group, table.uid.codes, table.session], len(table))
