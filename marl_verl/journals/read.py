"""Read files of stored episodes. Errors name the line; a damaged line does not affect other episodes."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from typing import Any

import msgspec

from marl_verl.episode import Episode
from marl_verl.episode.codec import SCHEMA, decode, decode_episode
from marl_verl.errors import MarlError, nearest
from marl_verl.tasks.base import Split, Task
from marl_verl.team import Named
from marl_verl.version import __version__

KIND = "episodes"  # key `kind` of a file's first line


@dataclass(frozen=True)
class Supplied:
    """A registered part with its options, and the distribution that supplied it."""

    name: str
    options: dict[str, Any]
    distribution: str
    version: str


@dataclass(frozen=True)
class StoredAgent:
    policy: str
    reward: str | None
    instructions: str
    past_of: str | None = None  # the policy whose past versions act for the agent


@dataclass(frozen=True)
class Header:
    """The first line of a file; see `write.header`."""

    step: int
    split: Split
    marl_verl: str
    agents: dict[str, StoredAgent]
    task: Supplied
    workflow: Supplied
    algorithm: Named
    sampler: Named


class StoredFailure(msgspec.Struct, frozen=True, rename={"reason": "failure"}):
    """A failed attempt: class of the failure, error message, and task."""

    reason: str
    detail: str
    uid: str
    session: int
    task: str

    @property
    def id(self) -> str:
        """The id that the episode would have; in a tree several failures may share it."""
        return f"{self.uid}_{self.session}"


@dataclass(frozen=True)
class StoredEpisode:
    """A line with an episode: its number, the fields that a list shows, and the whole line as `data`."""

    id: str
    line: int
    score: float
    success: bool
    finished: bool
    task: str
    turns: list[dict[str, Any]]
    off_path_turns: list[dict[str, Any]]
    journal: dict[str, Any]
    data: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class EpisodeFile:
    """A file of stored episodes (id -> episode, in its order).

    Attributes:
        source: name of the file in errors.
        damaged: an error message for each line that cannot be read.
    """

    source: str
    header: Header
    episodes: dict[str, StoredEpisode]
    failures: list[StoredFailure]
    damaged: list[str]

    @classmethod
    def parse(cls, content: bytes, source: str) -> EpisodeFile:
        """Parse the content of a file. MarlError: it is empty, has no header, or another schema."""
        if not content.strip():
            raise MarlError(f"{source} is empty")
        found = cls(source, _header(content, source), {}, [], [])
        _, *lines = content.split(b"\n")
        for number, line in enumerate(lines, start=2):
            if line.strip():
                found._add(number, line, cut=number > len(lines))  # the last one has no line break
        return found

    def check(self) -> None:
        """Raise MarlError if lines are damaged."""
        if self.damaged:
            more = f" (and {len(self.damaged) - 1} more)" if len(self.damaged) > 1 else ""
            raise MarlError(f"{self.source} is damaged: {self.damaged[0]}{more}")

    def episode(self, name: str) -> Episode:
        """The episode with an id. MarlError: no such episode (with the nearest id), or a malformed line."""
        stored = self.episodes.get(name)
        if stored is None:
            known = [*self.episodes, *(each.id for each in self.failures)]
            hint = nearest(name, known)
            if known and not hint.startswith("did"):  # `nearest` lists all of them if none is near
                hint = f"its {len(known)} ids are like '{known[0]}'"
            lost = "".join(f"; {message}" for message in self.damaged[:1])
            raise MarlError(f"{self.source} has no episode '{name}': {hint}{lost}")
        try:
            return decode_episode(stored.data)
        except MarlError as error:
            message = f"episode '{name}': {error}; {_written(self.header.marl_verl)}"
            raise MarlError(f"{self.source}, line {stored.line}: {message}") from error

    def _add(self, number: int, line: bytes, cut: bool) -> None:
        try:
            data = json.loads(line)
            if not isinstance(data, dict):
                raise MarlError("not a JSON object")
            if "failure" in data:
                self.failures.append(decode(StoredFailure, data, "the failure"))
            else:
                task = decode(Task, data.get("task"), "the episode, task").id
                stored = decode(StoredEpisode, {**data, "line": number, "task": task, "data": data}, "the episode")
                self.episodes[stored.id] = stored
        except (ValueError, RecursionError) as error:
            self.damaged.append(f"line {number} is cut off" if cut else f"line {number} is not JSON: {error}")
        except MarlError as error:
            self.damaged.append(f"line {number}: {error}; {_written(self.header.marl_verl)}")


def holds_episodes(content: bytes) -> bool:
    """Whether the first line of a file is a header of stored episodes."""
    return _first(content)[0] is not None


def _first(content: bytes) -> tuple[dict[str, Any] | None, str]:
    """(line 1 if it is a header, else None; why it is not JSON, else "")."""
    try:
        data = json.loads(content.partition(b"\n")[0])
    except (ValueError, RecursionError) as error:
        return None, f"line 1 is not JSON: {error}"
    return data if isinstance(data, dict) and data.get("kind") == KIND else None, ""


def _header(content: bytes, source: str) -> Header:
    data, why = _first(content)
    if data is None:
        if why and b"\n" not in content and content.startswith(b'{"schema"'):
            raise MarlError(f"{source} is cut off in line 1, its header")
        with contextlib.suppress(ValueError, RecursionError):
            whole = json.loads(content)
            if isinstance(whole, dict) and "rows" in whole:
                why = "these are rows, which `marl-verl explain` shows"
        why = why or f'line 1 is not {{"schema": {SCHEMA}, "kind": "{KIND}", ...'
        raise MarlError(f"{source} holds no stored episodes: {why}")
    if data.get("schema") != SCHEMA:
        raise MarlError(f"{source} has schema {data.get('schema')!r}; this version of marl-verl reads {SCHEMA}")
    try:
        return decode(Header, data, "the header in line 1")
    except MarlError as error:
        written = _written(data.get("marl_verl", "of an unknown version"))
        raise MarlError(f"{source}: {error}; {written}") from error


def _written(version: str) -> str:
    return f"the file was written by marl-verl {version}, this is {__version__}"
