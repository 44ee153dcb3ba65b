"""Read files of stored episodes. Errors name the line; a damaged line does not affect other episodes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import msgspec

from marl_verl.episode import Episode
from marl_verl.episode.codec import SCHEMA, decode, decode_episode
from marl_verl.errors import MarlError, nearest
from marl_verl.tasks.task import Split, Task
from marl_verl.team import Named


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
    """The first line of a file; see `run.records.header`."""

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


class StoredEpisode(msgspec.Struct):
    """A line with an episode: the fields that a list shows, the number of the line, and the whole line as `data`."""

    id: str
    score: float
    success: bool
    finished: bool
    task: Task
    journal: dict[str, Any]
    off_path_turns: list[dict[str, Any]]
    line: int = 0
    data: dict[str, Any] = {}

    @property
    def turns(self) -> int:
        """The number of turns of its path."""
        return sum("row" in record for record in self.journal["records"])


@dataclass(frozen=True)
class EpisodeFile:
    """A file of stored episodes (id -> episode, in its order).

    Attributes:
        source: name of the file in errors.
        damaged: an error message for each line that cannot be read.
    """

    source: str
    header: Header
    episodes: dict[str, StoredEpisode] = field(default_factory=dict)
    failures: list[StoredFailure] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)

    @classmethod
    def parse(cls, content: bytes, source: str) -> EpisodeFile:
        """Parse the content of a file. MarlError: it has no header, or another schema."""
        first, *lines = content.split(b"\n")
        file = cls(source, _header(first, source))
        for number, line in enumerate(lines, start=2):
            if line.strip():
                file._add(number, line, cut=number > len(lines))  # the last one has no line break
        return file

    def check(self) -> None:
        """Raise MarlError if lines are damaged."""
        if self.damaged:
            raise MarlError(f"{self.source} is damaged: {first_of(self.damaged)}")

    def episode(self, name: str) -> Episode:
        """The episode with an id. MarlError: no such episode (with the nearest id), or a malformed line."""
        stored = self.episodes.get(name)
        if stored is None:
            known = [*self.episodes, *(failure.id for failure in self.failures)]
            hint = nearest(name, known)
            if known and not hint.startswith("did"):  # `nearest` lists all of them if none is near
                hint = f"its {len(known)} ids are like '{known[0]}'"
            lost = "".join(f"; {message}" for message in self.damaged[:1])
            raise MarlError(f"{self.source} has no episode '{name}': {hint}{lost}")
        try:
            return decode_episode(stored.data)
        except MarlError as error:
            raise MarlError(f"{self.source}, line {stored.line}: episode '{name}': {error}") from error

    def _add(self, number: int, line: bytes, cut: bool) -> None:
        try:
            data = json.loads(line)
            if "failure" in data:
                self.failures.append(decode(StoredFailure, data, "the failure"))
            else:
                stored = decode(StoredEpisode, {**data, "line": number, "data": data}, "the episode")
                self.episodes[stored.id] = stored
        except (ValueError, TypeError, RecursionError) as error:
            self.damaged.append(f"line {number} is cut off" if cut else f"line {number} is no JSON object: {error}")
        except MarlError as error:
            self.damaged.append(f"line {number}: {error}")


def first_of(messages: list[str]) -> str:
    """The first of several error messages, with the number of further ones."""
    return messages[0] + (f" (and {len(messages) - 1} more)" if len(messages) > 1 else "")


def holds_episodes(content: bytes) -> bool:
    """Whether the first line of a file is a header of stored episodes."""
    return content.startswith(b'{"schema":') and b'"kind":"episodes"' in content.partition(b"\n")[0]


def _header(line: bytes, source: str) -> Header:
    if not holds_episodes(line):
        hint = "; `marl-verl explain` shows rows" if line.startswith(b"{") and b'"rows"' in line else ""
        raise MarlError(f"{source} holds no stored episodes: its first line is not their header{hint}")
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise MarlError(f"{source} is cut off in line 1, its header") from error
    if (schema := data["schema"]) != SCHEMA:
        build = f"the build of marl-verl {data.get('marl_verl')} that wrote it"
        raise MarlError(f"{source} has schema {schema}, which {build} reads; this version reads {SCHEMA}")
    return decode(Header, data, f"{source}: the header in line 1")
