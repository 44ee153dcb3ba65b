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
from marl_verl.run.run_dir import RunDir
from marl_verl.tasks import Split
from marl_verl.team import Named
from marl_verl_inspect.files import stored_file

NEAR = 9  # stored steps in which an episode is looked for


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


def file_of_episode(source: Path, name: str | None, step: int | None = None) -> Path:
    """`stored_file` of `step`, else of that in an episode's id (`s12t00000_0`: training step 12, `g20t00000_0`: the
    validation at step 20), else of the latest. Asynchronous training finishes a task of step 12 also in others."""
    place = re.match(r"(([a-z])(\d+)t\d+)_", name or "")
    folder = "episodes" if place and place[2] != "s" else "journals"
    if step is None and place:
        step = wanted = int(place[3])
        files = RunDir(source).stored(folder)
        for at in sorted(files, key=lambda at: abs(at - wanted))[:NEAR]:
            if f'"{place[1]}"'.encode() in read_file(files[at]):
                step = at
                break
    return stored_file(source, folder, step)


def _values(lines: list[bytes], source: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name in errors, value) of each line, the first one also where it is empty."""
    for number, line in enumerate(lines, start=1):
        where = f"{source}, line {number}"
        if line.strip() or number == 1:
            with user_error(f"{where} is damaged", TypeError, ValueError, RecursionError):
                yield where, dict(json.loads(line))
