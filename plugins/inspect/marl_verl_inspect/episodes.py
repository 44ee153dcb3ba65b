"""Read files of stored episodes. Errors name the line."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from marl_verl.episode import Episode
from marl_verl.episode.codec import SCHEMA, decode, decode_episode
from marl_verl.errors import MarlError, check_known, user_error
from marl_verl.run.reading import read_file
from marl_verl.tasks import Split
from marl_verl.team import Named
from marl_verl_inspect.files import read_stored


@dataclass(frozen=True)
class Header:
    """The first line of a file; see `run.records.header`."""

    step: int
    split: Split
    agents: dict[str, dict[str, Any]]
    task: Named
    workflow: Named
    algorithm: Named
    sampler: Named


@dataclass(frozen=True)
class StoredFailure:
    """A failed attempt: class of the failure, error message, and task."""

    failure: str
    detail: str
    uid: str
    session: int
    task: str

    @property
    def id(self) -> str:
        """The id that the episode would have; in a tree several failures may share it."""
        return f"{self.uid}_{self.session}"


@dataclass(frozen=True)
class EpisodeFile:
    """A file of stored episodes (id -> episode, in its order); `source` is its name in errors."""

    source: str
    header: Header
    episodes: dict[str, Episode] = field(default_factory=dict)
    failures: list[StoredFailure] = field(default_factory=list)

    @classmethod
    def parse(cls, content: bytes, source: str) -> "EpisodeFile":
        """Parse the content of a file. MarlError: it has no header, another schema, or a line that cannot be read."""
        (_, head), *rest = _values(content.split(b"\n"), source)
        if head.get("schema") != SCHEMA:
            raise MarlError(f"{source} does not begin with a header of episodes in schema {SCHEMA}, which is read here")
        file = cls(source, decode(Header, head, f"{source}: the header in line 1"))
        for where, data in rest:
            if "failure" in data:
                file.failures.append(decode(StoredFailure, data, where))
            else:
                with user_error(where):
                    episode = decode_episode(data)
                file.episodes[episode.id] = episode
        return file

    def episode(self, name: str) -> Episode:
        """The episode with an id. MarlError: no such episode."""
        with user_error(self.source):
            check_known("episode", name, self.episodes)
        return self.episodes[name]


def read_episodes(path: Path) -> EpisodeFile:
    """A file of stored episodes."""
    return EpisodeFile.parse(read_file(path), f"'{path}'")


def file_of_episode(source: Path, name: str | None, step: int | None = None) -> EpisodeFile:
    """The file of a run, or `source` itself, that has an episode (`read_stored`): `s12t00000_0` is one of training step
    12, `g20t00000_0` one of the validation at step 20."""
    place = "episodes" if re.match(r"[a-rt-z]\d+t\d+_", name or "") else "journals"
    path, content = read_stored(source, place, name, step)
    return EpisodeFile.parse(content, f"'{path}'")


def _values(lines: list[bytes], source: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name in errors, value) of each line, the first one also where it is empty."""
    for number, line in enumerate(lines, start=1):
        where = f"{source}, line {number}"
        if line.strip() or number == 1:
            with user_error(f"{where} is damaged", TypeError, ValueError, RecursionError):
                yield where, dict(json.loads(line))
