"""Encode journals, turns and episodes as JSON values, and decode them. The only definition of the stored format.

An act is stored once, with its action and, as "row", its place among the rows; a field that has its default is not
stored, and a long observation as what it adds to an earlier one (`Deltas`). Encoding is deterministic: wall-clock times
are not stored. The standard library's `json` is used, since it keeps NaN and unpaired surrogates.
"""

import dataclasses
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from marl_verl.episode.journal import ActRecord, CallRecord, Episode, Journal, Record, as_json
from marl_verl.episode.messages import Message, Observation, as_observation
from marl_verl.episode.turn import Act, Action, Turn, shared_length
from marl_verl.errors import user_error

SCHEMA = 4  # version of the stored format: increment it with every change
CLOCK = ("seconds",)
TOKENS = ("prompt_ids", "response_ids", "log_probs")
LEAST = 1000  # characters that an observation must have in common with an earlier one; otherwise it is stored whole
T = TypeVar("T")


class Deltas:
    """Encodes (or decodes) the observations of one episode as what they add to an earlier one, so that a stored
    conversation is linear in its new text:

        observation = earlier[:messages] + [earlier[messages].content[:characters] + first.content] + rest

    Observations are numbered in the order in which they are encoded, and decoded in the same order.
    """

    def __init__(self) -> None:
        self._seen: list[Sequence[Message]] = []
        self._latest: dict[str, int] = {}  # agent -> number of its latest observation

    def encode(self, agent: str, observation: Observation) -> dict[str, Any]:
        """The keys `observation` and, unless it is stored whole, `shared`: [number, messages, characters]."""
        number = self._latest.get(agent, len(self._seen) - 1)
        earlier = self._seen[number] if number >= 0 else ()
        self._latest[agent] = len(self._seen)
        self._seen.append(observation)
        messages = shared_messages(earlier, observation)
        characters = 0
        if messages < min(len(earlier), len(observation)):
            old, new = earlier[messages], observation[messages]
            if old["role"] == new["role"]:
                characters = shared_length(old["content"], new["content"])
        if characters + sum(len(message["content"]) for message in observation[:messages]) < LEAST:
            return {"observation": observation}
        added = [dict(message) for message in observation[messages:]]
        if characters:
            added[0]["content"] = added[0]["content"][characters:]
        return {"observation": added, "shared": [number, messages, characters]}

    def decode(self, data: dict[str, Any]) -> dict[str, Any]:
        """`data` with its whole observation; raises where it shares what no earlier observation has."""
        whole = data.get("observation")
        if "shared" in data:
            number, messages, characters = data["shared"]
            earlier, added = self._seen[number], [dict(message) for message in data["observation"]]
            if characters:
                added[0]["content"] = earlier[messages]["content"][:characters] + added[0]["content"]
            whole = [*earlier[:messages], *added]
        self._seen.append(whole if isinstance(whole, list | tuple) else ())
        return {**data, "observation": whole} if whole is not None else data


def shared_messages(one: Sequence[Message], other: Sequence[Message]) -> int:
    """Number of equal messages at the beginning of two conversations."""
    shorter = min(len(one), len(other))
    return next((i for i in range(shorter) if one[i] is not other[i] and one[i] != other[i]), shorter)


def decode(kind: type[T], data: Any, where: str) -> T:
    """Convert a JSON value to a `kind`; unknown keys are ignored. MarlError, beginning with `where`, if it is none."""
    with user_error(where, msgspec.ValidationError):
        return msgspec.convert(data, kind)


def encode_journal(
    journal: Journal, turns: Sequence[Turn] = (), tokens: bool = True, deltas: Deltas | None = None
) -> dict[str, Any]:
    """A journal as a JSON value, with the rows of `turns` at their acts, and token ids and log-probs if `tokens`."""
    deltas = deltas or Deltas()
    rows = {turn.key: {"row": _row(turn)} for turn in turns}
    records = [
        encode_call(record)
        if isinstance(record, CallRecord)
        else _encode_act(*record, tokens, deltas) | rows.get(record.act.key, {})
        for record in journal
    ]
    return {"seed": journal.seed, "records": records}


def decode_journal(data: Any) -> Journal:
    """Decode the result of `encode_journal`. MarlError: as in `decode`."""
    return _decode_journal(data, "", Deltas())[0]


def encode_call(call: CallRecord) -> dict[str, Any]:
    """A call as a JSON value; its arguments and result are parsed from their JSON texts."""
    data = {"effect": "call", "agent": call.agent, "function": call.function, "arguments": json.loads(call.arguments)}
    if call.raised is not None:
        return {**data, "raised": dataclasses.asdict(call.raised)}
    return {**data, "value": None if call.value is None else json.loads(call.value)}


def encode_episode(episode: Episode, tokens: bool) -> dict[str, Any]:
    """An episode as a JSON value, with token ids and log-probabilities if `tokens`."""
    deltas = Deltas()
    journal = encode_journal(episode.journal, episode.turns, tokens, deltas)
    off_path = [
        _encode_act(turn.act, turn.action, tokens, deltas) | {"row": _row(turn)} for turn in episode.off_path_turns
    ]
    return {
        "id": episode.id,
        **_fields(episode, ("turns", "off_path_turns", "journal", *CLOCK)),
        **{"task": _fields(episode.task), "answer": plain(episode.answer), "finished": episode.finished},
        **{"success": bool(episode.success), "score": float(episode.score), "off_path_turns": off_path},
        "journal": journal,
    }


def decode_episode(data: Mapping[str, Any]) -> Episode:
    """Decode the result of `encode_episode`. MarlError: as in `decode`."""
    uid, deltas = data.get("uid", ""), Deltas()
    journal, turns = _decode_journal(data.get("journal"), uid, deltas)
    others = enumerate(decode(list[dict[str, Any]], data.get("off_path_turns"), "the off-path turns"))
    beside = [_decode_turn(record, uid, f"other turn {i}", deltas) for i, record in others]
    return decode(Episode, {**data, "turns": turns, "journal": journal, "off_path_turns": beside}, "the episode")


def plain(value: Any) -> Any:
    """An answer as a JSON value: dataclasses as mappings, sets as sorted lists, other values as their `repr`."""
    try:
        return json.loads(json.dumps(value, default=_plain))
    except Exception:  # noqa: BLE001 - a key that is not a string, a circular reference, code of users
        return without_addresses(repr(value))


def without_addresses(text: str) -> str:
    """A text without the memory addresses of a `repr`, which differ between processes."""
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def as_line(data: dict[str, Any]) -> str:
    """One line of JSON, without a line break; text that UTF-8 cannot encode (an unpaired surrogate) is escaped."""
    line = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    try:
        line.encode()
    except UnicodeEncodeError:
        return json.dumps(data, separators=(",", ":"))
    return line


def _encode_act(act: Act, action: Action, tokens: bool, deltas: Deltas) -> dict[str, Any]:
    sampled = _fields(action, CLOCK if tokens else CLOCK + TOKENS)
    if not tokens:
        sampled["tokens"] = action.length
    seen = deltas.encode(act.agent, act.observation)
    return {"effect": "act", **_fields(act, ("former", "observation")), **seen, "action": sampled}


def _row(turn: Turn) -> dict[str, Any]:
    """The place of a turn among the rows, and its rewards."""
    rewards = {component: float(turn.rewards[component]) for component in sorted(turn.rewards)}
    return {**_fields(turn, ("act", "action", "uid")), "session": turn.session, "rewards": rewards}


def _fields(value: Any, without: Collection[str] = ()) -> dict[str, Any]:
    """The fields of a dataclass that do not have their default; `dataclasses.asdict` would deep-copy the tokens."""
    values = {}
    for field in dataclasses.fields(value):
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        stored = getattr(value, field.name)
        if field.name not in without and (default is dataclasses.MISSING or stored != default):
            values[field.name] = stored
    return values


def _decode_journal(journal: Any, uid: str, deltas: Deltas) -> tuple[Journal, list[Turn]]:
    """The journal, and the turns of its acts that are rows."""
    stored = decode(dict[str, Any], journal, "the journal")
    records: list[Record] = []
    turns: list[Turn] = []
    for i, data in enumerate(decode(list[dict[str, Any]], stored.get("records"), "the journal's records")):
        if data.get("effect") == "call":
            texts = {name: as_json(data[name]) for name in ("arguments", "value") if name in data}
            records.append(decode(CallRecord, data | texts, f"record {i}"))
        else:
            turn = _decode_turn(data, uid, f"record {i}", deltas)
            records.append(ActRecord(turn.act, turn.action))
            turns += [turn] if "row" in data else []
    return Journal(tuple(records), decode(int, stored.get("seed"), "the journal's seed")), turns


def _decode_turn(data: dict[str, Any], uid: str, where: str, deltas: Deltas) -> Turn:
    with user_error(where, AttributeError, LookupError, TypeError, ValueError):
        act = deltas.decode(data)
        turn = decode(Turn, {"uid": uid, **data.get("row", {}), "act": act, "action": data.get("action", {})}, where)
        as_observation(turn.observation)
        return turn


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, set | frozenset):
        return sorted((plain(member) for member in value), key=json.dumps)
    return without_addresses(repr(value))
