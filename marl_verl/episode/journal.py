"""The journal: every effect of an episode in order, as data. Sampling, credit and inspection replay it.

How the effects of a workflow are looked up:

    act     by (agent, slot); the observation must be the same
    call    by agent, function, arguments and count (the n-th call with these arguments)
    random  not recorded: the random streams are seeded from the journal's seed and the task id
"""

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from marl_verl.episode.turn import Act, Action, Turn
from marl_verl.tasks import Task


class ActRecord(NamedTuple):
    """An act and its action."""

    act: Act
    action: Action

    def __str__(self) -> str:
        return f"{self.act} (index {self.act.index}) -> {self.action.text!r}"


class CallError(Exception):
    """A call of a workflow failed, live and on replay alike; live, `__cause__` is the original exception. `kind` is its
    class, "ValueError", or "module:Class" if it is not built in; `message` is its text."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind, self.message = kind, message


@dataclass(frozen=True, slots=True)
class Raised:
    """The exception of a call: `kind` and `message` of its `CallError`."""

    kind: str
    message: str

    @classmethod
    def of(cls, error: Exception) -> "Raised":
        kind = type(error)
        module = "" if kind.__module__ == "builtins" else f"{kind.__module__}:"
        return cls(f"{module}{kind.__qualname__}", str(error))


@dataclass(frozen=True, slots=True)
class CallRecord:
    """A call and its result. Values are JSON texts, so that callers cannot mutate the record."""

    function: str  # "module:qualified name"
    arguments: str  # a list
    value: str | None = None  # None if the call raised
    raised: Raised | None = None
    agent: str | None = None  # that made the call; None: the team

    def __str__(self) -> str:
        who = "" if self.agent is None else f"{self.agent}: "
        return f"call {who}{self.function}({self.arguments[1:-1]})"

    def result(self) -> Any:
        """The result, parsed from its JSON text. CallError if the call raised."""
        if self.raised is not None:
            raise CallError(self.raised.kind, self.raised.message)
        assert self.value is not None
        return json.loads(self.value)


def as_json(value: Any) -> str:
    """The canonical JSON text of a value: sorted keys, dataclasses and pydantic models as mappings. TypeError else."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=_dataclass)


def _dataclass(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if hasattr(value, "model_dump") and not isinstance(value, type):  # of pydantic
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def function_name(fn: Any) -> str:
    """ "module:qualified name" of a function, or of the class of a callable object."""
    fn = getattr(fn, "func", fn)  # functools.partial
    named = fn if hasattr(fn, "__qualname__") else type(fn)
    module = getattr(named, "__module__", None) or "builtins"  # methods of built-in types have no module
    return f"{module}:{named.__qualname__}"


Record = ActRecord | CallRecord
CallKey = tuple[str | None, str, str]  # (agent, function, arguments)


@dataclass(frozen=True)
class Journal:
    """Effects in the order reached, and the seed of their run. Immutable: extensions share the records."""

    records: tuple[Record, ...] = ()
    seed: int = 0

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    @cached_property
    def _acts(self) -> dict[tuple[str, str], ActRecord]:
        return {record.act.key: record for record in self.records if isinstance(record, ActRecord)}

    @cached_property
    def _calls(self) -> dict[CallKey, list[CallRecord]]:
        calls: dict[CallKey, list[CallRecord]] = {}
        for record in self.calls():
            calls.setdefault((record.agent, record.function, record.arguments), []).append(record)
        return calls

    def act(self, agent: str, slot: str) -> ActRecord | None:
        """The record of an act, or None."""
        return self._acts.get((agent, slot))

    def call(self, function: str, arguments: str, number: int, agent: str | None = None) -> CallRecord | None:
        """The record of the n-th call (from 0) of a function with these arguments, or None."""
        calls = self._calls.get((agent, function, arguments), ())
        return calls[number] if number < len(calls) else None

    def acts(self) -> list[ActRecord]:
        """The acts, in order."""
        return list(self._acts.values())

    def calls(self) -> list[CallRecord]:
        """The calls, in order."""
        return [record for record in self.records if isinstance(record, CallRecord)]

    def prefix(self, count: int) -> "Journal":
        """The first `count` records."""
        return Journal(self.records[:count], self.seed)

    def extended(self, act: Act, action: Action) -> "Journal":
        """A copy with one more act and its action, to continue a candidate in a separate run."""
        return Journal((*self.records, ActRecord(act, action)), self.seed)


@dataclass(slots=True)
class Episode:
    """All turns of one run of a workflow on one task.

    Attributes:
        turns: in index order.
        answer: return value of the workflow; in an unfinished episode, its latest proposal (None without one).
        success: whether the task set counts the answer as a solution.
        journal: replays the episode.
        seconds: wall-clock time from its start to its score.
        score: the task's score of the answer, 0 without one; the mean of `outcomes` if it has any.
        outcomes: side -> its score, if the task set scores each side of the team.
        finished: whether the workflow has ended; a path in a tree may stop earlier.
        off_path_turns: in a tree, sampled turns that are not on its path; they are rows as well.
        leaf: in a tree, the last node of its path, set if the last row is at several nodes.
    """

    uid: str
    session: int
    task: Task
    turns: list[Turn]
    answer: Any
    success: bool
    journal: Journal
    seconds: float = 0.0
    score: float = 0.0
    finished: bool = True
    off_path_turns: list[Turn] = field(default_factory=list)
    leaf: str | None = None
    outcomes: dict[str, float] = field(default_factory=dict)

    def outcome(self, side: str | None) -> float:
        """The team reward of the agents of a side (None: of no side)."""
        return self.score if side is None else self.outcomes.get(side, self.score)

    @property
    def id(self) -> str:
        """uid_session, in a tree followed by the last node of the path; unique in a run."""
        leaf = self.leaf or (self.turns[-1].node if self.turns else None)
        return f"{self.uid}_{self.session}" + ("" if leaf is None else f"_{leaf}")
