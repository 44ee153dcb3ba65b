"""The journal: every effect of an episode in order, as data. Replaying it is how everything else is done.

A journal is immutable and its records are shared, so that a prefix, an extension or a copy with one action replaced
costs one tuple of references. How a workflow's effects are found in it:

    act     by (agent, slot), and only where the observation is the same
    call    by who called, function, arguments and "the n-th time with these": other arguments are another call
    random  not recorded draw by draw: the seed in the journal and the task's id make all of it again
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from marl_verl.episode.turn import Act, Action, as_observation
from marl_verl.errors import MarlError

SCHEMA = 1


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

    def outcome(self) -> Any:
        """The result, made anew from its JSON text; or raise the exception.

        Raises:
            JournalError: the class of the recorded exception is not imported here.
        """
        if self.raised is None:
            assert self.value is not None
            return json.loads(self.value)
        raise rebuild(self.raised)


Record = ActRecord | CallRecord
CallKey = tuple[str | None, str, str]
"""(agent, function, arguments)."""


@dataclass(frozen=True)
class Journal:
    """Effects in the order in which they were reached, and the seed of the run that made them."""

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

    def before(self, agent: str, slot: str) -> Journal:
        """Everything before an act: a run of it stands there. JournalError if there is no such act."""
        return self.prefix(self._position(agent, slot))

    def with_action(self, agent: str, slot: str, action: Action) -> Journal:
        """A copy with the action of one act replaced; later acts stay, and count where their observation is unchanged.

        Raises:
            JournalError: there is no such act.
        """
        position = self._position(agent, slot)
        record = self.records[position]
        assert isinstance(record, ActRecord)
        changed = ActRecord(record.act, action)
        return Journal((*self.records[:position], changed, *self.records[position + 1 :]), self.seed)

    def extended(self, act: Act, action: Action) -> Journal:
        """A copy with the action of one more act: how a candidate at an act is continued in a run of its own.

        Raises:
            JournalError: it has that act already.
        """
        if act.key in self._acts:
            raise JournalError(f"the journal has {act} already: replace it with `with_action`")
        return Journal((*self.records, ActRecord(act, action)), self.seed)

    def _position(self, agent: str, slot: str) -> int:
        record = self._acts.get((agent, slot))
        if record is None:
            known = ", ".join(f"{a}:{s}" for a, s in self._acts) or "no act"
            raise JournalError(f"the journal has no act {agent}:{slot}; it has {known}")
        return next(i for i, other in enumerate(self.records) if other is record)

    def to_json(self) -> str:
        """One line of JSON, with the schema's version."""
        return json.dumps(self.to_data(), ensure_ascii=False)

    def to_data(self, without: Collection[str] = ()) -> dict[str, Any]:
        """The journal as a JSON value.

        Args:
            without: fields of `Action` to leave out; `from_data` gives them their defaults.
        """
        return {"schema": SCHEMA, "seed": self.seed, "records": [_to_data(record, without) for record in self.records]}

    @classmethod
    def from_json(cls, text: str) -> Journal:
        """Read what `to_json` wrote.

        Raises:
            JournalError: not JSON (or cut off), another schema version, or a record that lacks something.
        """
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise JournalError(f"a journal that is not JSON, or cut off: {error}") from error
        return cls.from_data(data)

    @classmethod
    def from_data(cls, data: Any) -> Journal:
        """Read what `to_data` made. JournalError: another schema version, or a record that lacks something."""
        version = data.get("schema") if isinstance(data, dict) else None
        if version != SCHEMA:
            raise JournalError(f"a journal of schema {version!r}; this version of marl-verl reads {SCHEMA}")
        records: list[Record] = []
        try:
            for record in data["records"]:
                records.append(_from_data(record))
            return cls(tuple(records), data["seed"])
        except (KeyError, TypeError, ValueError) as error:
            what = f"{type(error).__name__}: {error}"
            raise JournalError(f"a journal that is malformed after record {len(records)}: {what}") from error


# by hand: `dataclasses.asdict` copies token by token
_ACT_FIELDS = tuple(field.name for field in dataclasses.fields(Act))
_ACTION_FIELDS = tuple(field.name for field in dataclasses.fields(Action))


def _to_data(record: Record, without: Collection[str]) -> dict[str, Any]:
    if isinstance(record, ActRecord):
        act = {name: getattr(record.act, name) for name in _ACT_FIELDS}
        action = {name: getattr(record.action, name) for name in _ACTION_FIELDS if name not in without}
        return {"effect": "act", **act, "action": action}
    data: dict[str, Any] = {"effect": "call", "function": record.function, "arguments": json.loads(record.arguments)}
    if record.agent is not None:
        data["agent"] = record.agent
    if record.raised is not None:
        return {**data, "raised": {"kind": record.raised.kind, "arguments": json.loads(record.raised.arguments)}}
    assert record.value is not None
    return {**data, "value": json.loads(record.value)}


def _from_data(data: dict[str, Any]) -> Record:
    if data["effect"] == "act":
        observation = as_observation(data["observation"])
        act = Act(data["agent"], data["slot"], data["turn"], data["index"], observation, data["joint"])
        action = Action(**data["action"])
        if not all(isinstance(text, str) for text in (act.agent, act.slot, action.text)):
            raise TypeError("agent, slot and action must be texts")
        return ActRecord(act, action)
    if data["effect"] != "call":
        raise ValueError(f"unknown effect {data['effect']!r}")
    arguments = as_json(data["arguments"])
    if "raised" in data:
        raised = Raised(data["raised"]["kind"], as_json(data["raised"]["arguments"]))
        return CallRecord(data["function"], arguments, raised=raised, agent=data.get("agent"))
    return CallRecord(data["function"], arguments, value=as_json(data["value"]), agent=data.get("agent"))


def as_json(value: Any) -> str:
    """The one JSON text of a value: sorted keys, dataclasses as their fields. TypeError if JSON cannot hold it."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=_dataclass)


def _dataclass(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"{type(value).__name__} is no JSON value")


def function_name(fn: Any) -> str:
    """ "module:qualified name" of a function; of the class, for an object that is callable."""
    fn = getattr(fn, "func", fn)  # functools.partial
    named = fn if hasattr(fn, "__qualname__") else type(fn)
    module = getattr(named, "__module__", None) or "builtins"  # a method of a built-in type has none
    return f"{module}:{named.__qualname__}"


def raised(error: Exception) -> Raised:
    """The record of an exception: its class, or the nearest base that can be found again by name, and its arguments.

    Arguments that JSON cannot hold are kept as their `repr`. The workflow sees `rebuild` of this, live as on replay.
    """
    base: type = next(kind for kind in type(error).__mro__ if _find(f"{kind.__module__}:{kind.__qualname__}") is kind)
    arguments = []
    for argument in error.args:
        try:
            arguments.append(json.loads(as_json(argument)))
        except TypeError:
            arguments.append(repr(argument))
    return Raised(f"{base.__module__}:{base.__qualname__}", as_json(arguments))


def rebuild(record: Raised) -> Exception:
    """The exception of a record. Its class is looked up among the modules already imported: a journal imports nothing.

    Raises:
        JournalError: no such class.
    """
    kind = _find(record.kind)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        raise JournalError(f"a recorded call raised {record.kind}, which is not an exception that is imported here")
    arguments = json.loads(record.arguments)
    error = kind.__new__(kind, *arguments)  # not __init__: it may want other arguments than `args`
    error.args = tuple(arguments)
    return error


def _find(kind: str) -> Any:
    module, _, path = kind.partition(":")
    found: Any = sys.modules.get(module)
    for name in path.split("."):
        found = getattr(found, name, None)
    return found
