"""Reading a file of stored episodes back: every mistake in it is told with its line, and spoils no other episode."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from marl_verl import __version__
from marl_verl.episode import Act, Action, Episode, Journal, Turn
from marl_verl.episode.turn import as_observation
from marl_verl.errors import MarlError, nearest
from marl_verl.journals.write import KIND, SCHEMA
from marl_verl.options import build, check_type
from marl_verl.tasks.base import Split, Task

T = TypeVar("T")

MISREAD = (KeyError, TypeError, ValueError, AttributeError, MarlError)
"""What reading a value raises that is not what it should be."""


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

    @property
    def id(self) -> str:
        """As that of the episode that it would have become; in a tree several failures may have it."""
        return f"{self.uid}_{self.session}"


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
        found = cls(source, _header(content, source), {}, [], [])
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
            known = [*self.episodes, *(each.id for each in self.failures)]
            hint = nearest(name, known)
            if known and not hint.startswith("did"):  # it names all of them where none is near
                hint = f"its {len(known)} are like '{known[0]}'"
            lost = "".join(f"; {said}" for said in self.damaged[:1])
            raise MarlError(f"{self.source} has no episode '{name}': {hint}{lost}")
        try:
            return _episode(stored.data)
        except MISREAD as error:
            said = f"episode '{name}': {_wrong('it', error)}; {_written(self.header.marl_verl)}"
            raise MarlError(f"{self.source}, line {stored.line}: {said}") from error

    def failed(self, name: str) -> list[StoredFailure]:
        """The failed attempts with an id; none where there is no such attempt."""
        return [each for each in self.failures if each.id == name]

    def _add(self, number: int, line: bytes, cut: bool) -> None:
        what = "it"
        try:
            data = json.loads(line)
            if not isinstance(data, dict):
                raise MarlError("it is no JSON object")
            what = "the failure" if "failure" in data else "the episode"
            if "failure" in data:
                self.failures.append(_failure(data))
            else:
                stored = _summary(data, number)
                self.episodes[stored.id] = stored
        except (ValueError, RecursionError) as error:
            self.damaged.append(f"line {number} is cut off" if cut else f"line {number} is not JSON: {error}")
        except MISREAD as error:
            self.damaged.append(f"line {number}: {_wrong(what, error)}; {_written(self.header.marl_verl)}")


def holds_episodes(content: bytes) -> bool:
    """Whether a file begins as one of stored episodes does."""
    try:
        data = json.loads(content.partition(b"\n")[0])
    except (ValueError, RecursionError):
        return False
    return isinstance(data, dict) and data.get("kind") == KIND


def _wrong(what: str, error: Exception) -> str:
    """What is wrong with `what`, in words."""
    if isinstance(error, KeyError):
        return f"{what} lacks {error}"
    return str(error) if isinstance(error, MarlError) else f"{what} is malformed: {error}"


def _written(version: str) -> str:
    return f"the file was written by marl-verl {version}, this is {__version__}"


def _each(what: str, values: Iterable[Any], read: Callable[[Mapping[str, Any]], T]) -> list[T]:
    """Every value read; a mistake in one of them is told with its number."""
    found = []
    for number, value in enumerate(values):
        if not isinstance(value, dict):
            raise MarlError(f"{what} {number} is no JSON object")
        try:
            found.append(read(value))
        except MISREAD as error:
            said = f"{what} {number}: {error}" if isinstance(error, MarlError) else _wrong(f"{what} {number}", error)
            raise MarlError(said) from error
    return found


def _header(content: bytes, source: str) -> Header:
    line, end, _ = content.partition(b"\n")
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        if not end and line.startswith(b'{"schema"'):
            raise MarlError(f"{source} is cut off in line 1, its header") from error
        raise MarlError(
            f"{source} holds no stored episodes: {_else(content, f'line 1 is not JSON: {error}')}"
        ) from error
    if isinstance(data, dict) and "rows" in data:
        raise MarlError(f"{source} holds no stored episodes: {_else(content, '')}")
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
        version = data.get("marl_verl", "of an unknown version")
        said = _wrong("the header in line 1", error)
        raise MarlError(f"{source}: {said}; {_written(version)}") from error


def _else(content: bytes, otherwise: str) -> str:
    """What a file is that is none of ours."""
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        return otherwise
    rows = isinstance(data, dict) and "rows" in data
    return "these are rows, which `marl-verl explain` shows" if rows else otherwise


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
            raise MarlError(f"the journal has no act {each['called'] or each['agent']}:{each['slot']}")
        return _turn(each, uid, record.act, record.action)

    def other(each: Mapping[str, Any]) -> Turn:
        """A turn beside the path, which brings its own."""
        act = Act(each["called"] or each["agent"], each["slot"], each["turn"], 0, as_observation(each["observation"]))
        return _turn(each, uid, act, Action(**each["action"]))

    turns = _each("turn", data["turns"], turn)
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
        others=_each("turn beside it", data["others"], other),
    )


def _turn(each: Mapping[str, Any], uid: str, act: Act, action: Action) -> Turn:
    place = (each["policy"], each["node"], each["parent"], each["agent"], each["index"])
    turn = Turn.of(act, action, uid, each["session"], *place)
    turn.rewards, turn.invalid = dict(each["rewards"]), each["invalid"]
    return turn
