"""Reading a file of stored episodes back: every mistake in it is told with its line, and spoils no other episode."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from marl_verl.episode import Act, Action, Episode, Journal, JournalError, Turn
from marl_verl.episode.turn import as_observation
from marl_verl.errors import MarlError, nearest
from marl_verl.journals.write import KIND, SCHEMA
from marl_verl.options import build, check_type
from marl_verl.tasks.base import Split, Task


@dataclass(frozen=True)
class Supplied:
    """A registered part with its options, and the distribution that supplied it."""

    name: str
    options: dict[str, Any]
    distribution: str
    version: str


@dataclass(frozen=True)
class StoredAgent:
    """An agent of the team that was stored."""

    policy: str
    reward: str | None
    instructions: str


@dataclass(frozen=True)
class Header:
    """The first line of a file; see `write.header`."""

    step: int
    split: Split
    marl_verl: str
    task: Supplied
    workflow: Supplied
    agents: dict[str, StoredAgent]
    algorithm: str
    sampler: str


@dataclass(frozen=True)
class StoredFailure:
    """An attempt that came to nothing: its class, what happened, and at which task."""

    reason: str
    detail: str
    uid: str
    session: int
    task: str


@dataclass(frozen=True)
class StoredEpisode:
    """A line with an episode: what a list shows, and the rest of it as it stands there.

    Attributes:
        line: its number in the file.
    """

    id: str
    line: int
    score: float
    success: bool
    finished: bool
    task: str
    data: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class EpisodeFile:
    """A file of stored episodes.

    Attributes:
        source: how an error names it.
        episodes: id -> episode, in the order of the file.
        damaged: what is wrong with the lines that cannot be read, a sentence each.
    """

    source: str
    header: Header
    episodes: dict[str, StoredEpisode]
    failures: list[StoredFailure]
    damaged: list[str]

    @classmethod
    def parse(cls, content: bytes, source: str) -> EpisodeFile:
        """Read a file.

        Raises:
            MarlError: it is empty, does not begin with a header, or has another schema.
        """
        lines = content.split(b"\n")
        whole = len(lines) - 1  # what comes after the last line break is cut off, or empty
        if not content.strip():
            raise MarlError(f"{source} is empty")
        found = cls(source, _header(lines[0], source), {}, [], [])
        for number, line in enumerate(lines[1:], start=2):
            if line.strip():
                found._add(number, line, cut=number > whole)
        return found

    def episode(self, name: str) -> Episode:
        """An episode by its id, with its journal.

        Raises:
            MarlError: no such episode (the nearest is offered), or its line is malformed.
        """
        stored = self.episodes.get(name)
        if stored is None:
            hint = nearest(name, self.episodes)
            if self.episodes and not hint.startswith("did"):  # it names all of them where none is near
                hint = f"its {len(self.episodes)} are like '{next(iter(self.episodes))}'"
            lost = "".join(f"; {said}" for said in self.damaged[:1])
            raise MarlError(f"{self.source} has no episode '{name}': {hint}{lost}")
        try:
            return _episode(stored.data)
        except (KeyError, TypeError, ValueError, AttributeError, JournalError) as error:
            raise MarlError(f"{self.source}, line {stored.line}: episode '{name}' {_malformed(error)}") from error

    def _add(self, number: int, line: bytes, cut: bool) -> None:
        try:
            data = json.loads(line)
            if "failure" in data:
                self.failures.append(_failure(data))
            else:
                stored = _summary(data, number)
                self.episodes[stored.id] = stored
        except (ValueError, RecursionError) as error:
            self.damaged.append(f"line {number} is cut off" if cut else f"line {number} is not JSON: {error}")
        except (KeyError, TypeError, MarlError) as error:
            self.damaged.append(f"line {number} {_malformed(error)}")


def _malformed(error: Exception) -> str:
    what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
    return f"is malformed: {what}"


def _header(line: bytes, source: str) -> Header:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise MarlError(f"{source} holds no stored episodes: line 1 is not JSON: {error}") from error
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise MarlError(f'{source} holds no stored episodes: line 1 is not {{"schema": {SCHEMA}, "kind": "{KIND}", ...')
    if data.get("schema") != SCHEMA:
        raise MarlError(f"{source} has schema {data.get('schema')!r}; this version of marl-verl reads {SCHEMA}")
    try:
        agents = {name: build(StoredAgent, agent, f"agents.{name}") for name, agent in data["agents"].items()}
        parts = {kind: build(Supplied, data[kind], kind) for kind in ("task", "workflow")}
        names = {kind: data[kind]["name"] for kind in ("algorithm", "sampler")}
        values = {name: data[name] for name in ("step", "split", "marl_verl")}
        return build(Header, {**values, **parts, **names, "agents": agents}, "header")
    except (KeyError, TypeError, AttributeError, MarlError) as error:
        raise MarlError(f"{source}: the header in line 1 {_malformed(error)}") from error


def _summary(data: dict[str, Any], line: int) -> StoredEpisode:
    names = {"id": str, "score": float, "success": bool, "finished": bool}
    for name, hint in {**names, "turns": list, "others": list, "journal": dict}.items():
        check_type(data[name], hint, name)
    return StoredEpisode(line=line, task=data["task"]["id"], data=data, **{name: data[name] for name in names})


def _failure(data: dict[str, Any]) -> StoredFailure:
    names = ("detail", "uid", "session", "task")
    return build(StoredFailure, {"reason": data["failure"], **{name: data[name] for name in names}}, "failure")


def _episode(data: Mapping[str, Any]) -> Episode:
    journal = Journal.from_data(data["journal"])
    uid, task = data["uid"], data["task"]

    def turn(each: Mapping[str, Any]) -> Turn:
        """A turn of the path, whose act stands in the journal."""
        record = journal.act(each["called"] or each["agent"], each["slot"])
        if record is None:
            raise ValueError(f"its journal has no act {each['called'] or each['agent']}:{each['slot']}")
        return _turn(each, uid, record.act, record.action)

    def other(each: Mapping[str, Any]) -> Turn:
        """A turn beside the path, which brings its own."""
        act = Act(each["called"] or each["agent"], each["slot"], each["turn"], 0, as_observation(each["observation"]))
        return _turn(each, uid, act, Action(**each["action"]))

    turns = [turn(each) for each in data["turns"]]
    leaf = data["id"].removeprefix(f"{uid}_{data['session']}").removeprefix("_") or None
    return Episode(
        uid=uid,
        session=data["session"],
        task=Task(task["id"], task["prompt"], task["data"]),
        turns=turns,
        answer=data["answer"],
        success=data["success"],
        journal=journal,
        score=data["score"],
        finished=data["finished"],
        leaf=None if turns and turns[-1].node == leaf else leaf,
        others=[other(each) for each in data["others"]],
    )


def _turn(each: Mapping[str, Any], uid: str, act: Act, action: Action) -> Turn:
    place = (each["policy"], each["node"], each["parent"], each["agent"], each["index"])
    turn = Turn.of(act, action, uid, each["session"], *place)
    turn.rewards, turn.invalid = dict(each["rewards"]), each["invalid"]
    return turn
