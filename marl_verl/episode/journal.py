"""The journal: every effect of an episode in order, as data. Replaying it is how everything else is done.

How a workflow's effects are found in it:

    act     by (agent, slot), and only where the observation is the same
    call    by who called, function, arguments and "the n-th time with these": other arguments are another call
    random  not recorded draw by draw: the seed in the journal and the task's id make all of it again
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from marl_verl.episode.turn import Act, Action, Turn
from marl_verl.errors import MarlError
from marl_verl.tasks.base import Task


class JournalError(MarlError):
    """A journal that cannot be read, or lacks what it is asked for."""


@dataclass(frozen=True, slots=True)
class ActRecord:
    """An act and the action it got."""

    act: Act
    action: Action

    def __str__(self) -> str:
        return f"{self.act} (index {self.act.index}) -> {self.action.text!r}"


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception that a call raised: its class as "module:name", and its arguments as JSON text."""

    kind: str
    arguments: str

    def rebuild(self) -> Exception:
        """The exception. JournalError: its class is not in the modules already imported (a journal imports nothing)."""
        kind = find_class(self.kind)
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise JournalError(f"a recorded call raised {self.kind}, which is not an exception that is imported here")
        arguments = json.loads(self.arguments)
        error = kind.__new__(kind, *arguments)  # not __init__: it may want other arguments than `args`
        error.args = tuple(arguments)
        return error


@dataclass(frozen=True, slots=True)
class CallRecord:
    """A call and what came of it.

    Attributes:
        function: "module:qualified name".
        arguments: JSON text of the list of arguments.
        value: JSON text of the result, None where it raised. A text, so that no caller can change the record.
        raised: the exception, where it raised.
        agent: for which agent it was called, None for a call of the team.
    """

    function: str
    arguments: str
    value: str | None = None
    raised: Raised | None = None
    agent: str | None = None

    def __str__(self) -> str:
        who = "" if self.agent is None else f"{self.agent}: "
        return f"call {who}{self.function}({self.arguments[1:-1]})"

    def result(self) -> Any:
        """The result, made anew from its JSON text; or raise the exception, as `Raised.rebuild` makes it."""
        if self.raised is not None:
            raise self.raised.rebuild()
        assert self.value is not None
        return json.loads(self.value)


Record = ActRecord | CallRecord
CallKey = tuple[str | None, str, str]  # (agent, function, arguments)


@dataclass(frozen=True)
class Journal:
    """Effects in the order in which they were reached, and the seed of the run that made them.

    It is immutable and its records are shared: a prefix or an extension costs one tuple of references.
    """

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
        found: dict[CallKey, list[CallRecord]] = {}
        for record in self.records:
            if isinstance(record, CallRecord):
                found.setdefault((record.agent, record.function, record.arguments), []).append(record)
        return found

    def act(self, agent: str, slot: str) -> ActRecord | None:
        """The record of an act, None if there is none."""
        return self._acts.get((agent, slot))

    def call(self, function: str, arguments: str, number: int, agent: str | None = None) -> CallRecord | None:
        """The record of the n-th call (from 0) of a function with these arguments, None if there is none."""
        found = self._calls.get((agent, function, arguments), ())
        return found[number] if number < len(found) else None

    def acts(self) -> list[ActRecord]:
        """The acts, in order."""
        return list(self._acts.values())

    def calls(self) -> list[CallRecord]:
        """The calls, in order."""
        return [record for record in self.records if isinstance(record, CallRecord)]

    def prefix(self, count: int) -> Journal:
        """The first `count` records."""
        return Journal(self.records[:count], self.seed)

    def extended(self, act: Act, action: Action) -> Journal:
        """A copy with the action of one more act, to continue a candidate in a run of its own. JournalError: it has
        that act already."""
        if act.key in self._acts:
            raise JournalError(f"the journal has {act} already")
        return Journal((*self.records, ActRecord(act, action)), self.seed)


@dataclass(slots=True)
class Episode:
    """All turns of one run of a workflow on one task.

    Attributes:
        turns: in index order.
        answer: what the workflow returned; of an unfinished episode, what it would answer now (None: nothing yet).
        success: whether the task set counts the answer as a solution.
        journal: replays the episode.
        seconds: wall-clock time from its start to its score.
        score: the task's score of the answer, 0 without one.
        finished: whether the workflow has ended; a path in a tree may stop before that.
        off_path_turns: in a tree, sampled turns that are not on its path. They are rows as well.
        leaf: in a tree, the last node of its path, where the last row is at several.
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

    @property
    def id(self) -> str:
        """uid_session, and in a tree the last node of its path: unique in a run."""
        leaf = self.leaf or (self.turns[-1].node if self.turns else None)
        return f"{self.uid}_{self.session}" + ("" if leaf is None else f"_{leaf}")


def find_class(kind: str) -> Any:
    """What "module:qualified name" names in the modules already imported; None where there is no such thing."""
    module, _, path = kind.partition(":")
    found: Any = sys.modules.get(module)
    for name in path.split("."):
        found = getattr(found, name, None)
    return found
