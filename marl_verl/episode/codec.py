"""Encode journals, turns and episodes as JSON values, and decode them. The only definition of the stored format.

Encoding is deterministic: wall-clock times are not stored. Observation and action of a turn on the path are stored
once, in the journal, and a long observation as what it adds to an earlier one (`deltas`). The standard library's `json`
is used, since it keeps NaN and unpaired surrogates.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Collection, Mapping
from typing import Any, TypeVar, get_type_hints

import msgspec

from marl_verl.episode.calls import as_json, shown_value
from marl_verl.episode.deltas import Deltas
from marl_verl.episode.journal import ActRecord, CallRecord, Episode, Journal, JournalError, Record
from marl_verl.episode.messages import as_observation
from marl_verl.episode.turn import Act, Action, Turn

SCHEMA = 3  # version of the stored format: increment it with every change
CLOCK = ("seconds",)
TOKENS = ("prompt_ids", "response_ids", "log_probs")
OPTIONAL = ("parameters", "tool_calls", "reasoning", "malformed", "stop", "outcomes")  # stored where set

T = TypeVar("T")


def decode(kind: type[T], data: Any, where: str) -> T:
    """Convert a JSON value to a `kind` (a dataclass or msgspec.Struct); unknown keys are ignored.

    Raises:
        JournalError: a field is missing or has the wrong type; the message begins with `where`.
    """
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$")
        there = where + path.rstrip("`").replace(".", ", ", 1)
        if what.startswith("Object missing"):
            raise JournalError(f"{there} lacks '{what.split('`')[1]}'") from error
        raise JournalError(f"{there}: {what[0].lower()}{what[1:]}") from error


def encode_journal(journal: Journal, without: Collection[str] = (), deltas: Deltas | None = None) -> dict[str, Any]:
    """A journal as a JSON value, without the fields `without` of `Action`; these are decoded as their defaults."""
    deltas, records = deltas or Deltas(), []
    for record in journal:
        seen = deltas.encode(record.act.agent, record.act.observation) if isinstance(record, ActRecord) else {}
        records.append(encode_record(record, without) | seen)
    return {"schema": SCHEMA, "seed": journal.seed, "records": records}


def decode_journal(data: Any, deltas: Deltas | None = None) -> Journal:
    """Decode the result of `encode_journal`. JournalError: another schema version, or as in `decode`."""
    version = data.get("schema") if isinstance(data, dict) else None
    if version != SCHEMA:
        raise JournalError(f"the journal has schema {version!r}; this version of marl-verl reads {SCHEMA}")
    stored, deltas = decode(_Records, data, "the journal"), deltas or Deltas()
    return Journal(tuple(_record(each, f"record {i}", deltas) for i, each in enumerate(stored.records)), stored.seed)


def encode_record(record: Record, without: Collection[str] = ()) -> dict[str, Any]:
    """An effect as a JSON value; arguments and result of a call are parsed from their JSON texts."""
    if isinstance(record, ActRecord):
        return {"effect": "act", **_fields(record.act, ("former",)), "action": _fields(record.action, without)}
    arguments = json.loads(record.arguments)
    called = {"effect": "call", "agent": record.agent, "function": record.function, "arguments": arguments}
    if record.raised is not None:
        return {**called, "raised": _fields(record.raised)}
    return {**called, "value": None if record.value is None else json.loads(record.value)}


def encode_turn(turn: Turn) -> dict[str, Any]:
    """Position and rewards of a turn, without the observation and action that its journal record contains."""
    rewards = {component: float(turn.rewards[component]) for component in sorted(turn.rewards)}
    unset = [name for name in ("columns", "transition") if not getattr(turn, name)]
    without = ("uid", "observation", "action", "parameters", "former", *unset)
    return {**_fields(turn, without), "length": turn.length, "rewards": rewards}


def encode_episode(episode: Episode, tokens: bool) -> dict[str, Any]:
    """An episode as a JSON value, with token ids and log-probabilities if `tokens`."""
    without, deltas = CLOCK if tokens else CLOCK + TOKENS, Deltas()
    journal = encode_journal(episode.journal, without, deltas)
    return {
        "id": episode.id,
        **_fields(episode, (*_RAW, *CLOCK)),
        **{"task": _fields(episode.task), "answer": plain(episode.answer)},
        **{"success": bool(episode.success), "score": float(episode.score)},
        "turns": [encode_turn(turn) for turn in episode.turns],
        "off_path_turns": [
            {
                **encode_turn(turn),
                **deltas.encode(turn.agent, turn.observation),
                **({"parameters": turn.parameters} if turn.parameters else {}),
                "action": _fields(turn.action, without),
            }
            for turn in episode.off_path_turns
        ],
        "journal": journal,
    }


def decode_episode(data: Mapping[str, Any]) -> Episode:
    """Decode the result of `encode_episode`. JournalError: as in `decode_journal`, or a turn without a journal act."""
    stored = msgspec.structs.asdict(decode(_Stored, {"outcomes": {}, **data}, "the episode"))
    deltas = Deltas()
    journal, uid = decode_journal(stored["journal"], deltas), stored["uid"]
    turns = [_turn(each, uid, f"turn {i}", journal) for i, each in enumerate(stored["turns"])]
    others = [_whole(each, f"other turn {i}", deltas) for i, each in enumerate(stored["off_path_turns"])]
    off_path = [_turn(each, uid, f"other turn {i}") for i, each in enumerate(others)]
    return Episode(**{**stored, "journal": journal, "turns": turns, "off_path_turns": off_path})


def plain(value: Any) -> Any:
    """An answer as a JSON value: dataclasses as mappings, sets as sorted lists, other values as their `repr`."""
    try:
        return json.loads(json.dumps(value, default=_plain))
    except Exception:  # noqa: BLE001 - a key that is not a string, a circular reference, code of users
        return without_addresses(json.loads(shown_value(value)))


def without_addresses(text: str) -> str:
    """A text without the memory addresses of a `repr`, which differ between processes."""
    return re.sub(r" at 0x[0-9a-f]+", "", text)


class _Records(msgspec.Struct):
    seed: int
    records: list[dict[str, Any]]


# the fields of an episode that are decoded one by one
_RAW: dict[str, Any] = {
    "turns": list[dict[str, Any]],
    "off_path_turns": list[dict[str, Any]],
    "journal": dict[str, Any],
}
_Stored = msgspec.defstruct(
    "_Stored", [(name, _RAW.get(name, hint)) for name, hint in get_type_hints(Episode).items() if name not in CLOCK]
)


def _fields(value: Any, without: Collection[str] = ()) -> dict[str, Any]:
    """The fields of a dataclass; `dataclasses.asdict` would deep-copy the token lists."""
    names = (field.name for field in dataclasses.fields(value))
    found = {name: getattr(value, name) for name in names if name not in without}
    return {name: value for name, value in found.items() if value or name not in OPTIONAL}


def _whole(data: dict[str, Any], where: str, deltas: Deltas) -> dict[str, Any]:
    try:
        return deltas.decode(data)
    except ValueError as error:
        raise JournalError(f"{where}: {error}") from error


def _record(data: dict[str, Any], where: str, deltas: Deltas) -> Record:
    if data.get("effect") == "act":
        data = _whole(data, where, deltas)
        act = decode(Act, data, where)
        _check_observation(act, where)
        return ActRecord(act, decode(Action, data.get("action", {}), f"{where}, action"))
    if data.get("effect") != "call":
        raise JournalError(f"{where}: unknown effect {data.get('effect')!r}")
    if "raised" not in data and "value" not in data:
        raise JournalError(f"{where} lacks 'value'")
    texts = {name: as_json(data[name]) for name in ("arguments", "value") if name in data}
    return decode(CallRecord, data | texts, where)


def _turn(data: dict[str, Any], uid: str, where: str, journal: Journal | None = None) -> Turn:
    """Decode a turn. With a journal (turns on the episode's path), observation and action are taken from there."""
    elsewhere: dict[str, Any] = {} if journal is None else {"observation": (), "action": {"text": ""}}
    turn = decode(Turn, {**data, "uid": uid, **elsewhere}, where)
    if journal is None:
        _check_observation(turn, where)
    elif (record := journal.act(*turn.key)) is None:
        raise JournalError(f"{where}: the journal has no act {':'.join(turn.key)}")
    else:
        turn.observation, turn.parameters, turn.action = *record.act.seen, record.action
    return turn


def _check_observation(of: Act | Turn, where: str) -> None:
    try:
        as_observation(of.observation)
    except TypeError as error:
        raise JournalError(f"{where}: {error}") from error


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _fields(value)
    if isinstance(value, set | frozenset):
        return sorted((plain(each) for each in value), key=json.dumps)
    return without_addresses(repr(value))
