"""Read files of stored episodes. Errors name the line."""

import json
from dataclasses import dataclass, field
from typing import Any

import msgspec

from marl_verl.episode import Episode
from marl_verl.episode.codec import SCHEMA, decode, decode_episode
from marl_verl.errors import MarlError, nearest, user_error
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
    """A line with an episode: the fields that a list shows, its place in the file, and the whole line as `data`."""

    id: str
    score: float
    success: bool
    finished: bool
    task: Task
    journal: dict[str, Any]
    off_path_turns: list[dict[str, Any]]
    where: str = ""
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
    """

    source: str
    header: Header
    episodes: dict[str, StoredEpisode] = field(default_factory=dict)
    failures: list[StoredFailure] = field(default_factory=list)

    @classmethod
    def parse(cls, content: bytes, source: str) -> "EpisodeFile":
        """Parse the content of a file. MarlError: it has no header, another schema, or a line that cannot be read."""
        first, *lines = content.split(b"\n")
        file = cls(source, _header(first, source))
        for number, line in enumerate(lines, start=2):
            if line.strip():
                file._add(line, f"{source}, line {number}")
        return file

    def episode(self, name: str) -> Episode:
        """The episode with an id. MarlError: no such episode (with the nearest id), or a malformed line."""
        stored = self.episodes.get(name)
        if stored is None:
            known = [*self.episodes, *(failure.id for failure in self.failures)]
            hint = nearest(name, known)
            if known and not hint.startswith("did"):  # `nearest` lists all of them if none is near
                hint = f"its {len(known)} ids are like '{known[0]}'"
            raise MarlError(f"{self.source} has no episode '{name}': {hint}")
        with user_error(f"{stored.where}: episode '{name}'"):
            return decode_episode(stored.data)

    def _add(self, line: bytes, where: str) -> None:
        try:
            data = dict(json.loads(line))
        except (TypeError, ValueError, RecursionError) as error:
            raise MarlError(f"{where} is damaged: {error}") from error
        if "failure" in data:
            self.failures.append(decode(StoredFailure, data, where))
        else:
            stored = decode(StoredEpisode, {**data, "where": where, "data": data}, where)
            self.episodes[stored.id] = stored


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
