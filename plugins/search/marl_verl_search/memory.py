"""Memory across episodes: `team.memory`, and the option `marl.run.memory` (docs/memory.md).

Reads and writes are calls of the journal, so that a replay sees what was seen. The episodes of a step read the same
notes; what they write is added after the step, in the order of tasks, sessions and journals.
"""

import json
from collections.abc import Coroutine, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

from marl_verl import Episode, MarlError, Team
from marl_verl.options import NonNegative, Positive, build
from marl_verl_search.source import Index

NAME, WHERE, FILE = "memory", "marl.run.memory", "notes.json"
Notes = dict[str, str]  # key -> text, oldest first; a note without a key is its own key


class TeamMemory:
    """`team.memory`; `team["solver"].memory` reads in the name of an agent. All methods are awaited."""

    def __init__(self, caller: Team) -> None:
        self._caller = caller

    def search(self, query: str, k: int = 3) -> Coroutine[Any, Any, list[str]]:
        """The k best notes by BM25 with a word of the query, best first, each as "text" or "key: text"."""
        return self._caller.call(partial(search, self._caller.name), query, k)

    def get(self, key: str) -> Coroutine[Any, Any, str | None]:
        """The text of a key, or None."""
        return self._caller.call(partial(get, self._caller.name), key)

    def put(self, key: str, text: str) -> Coroutine[Any, Any, None]:
        """Set the text of a key for later steps; "" removes the note."""
        return self._caller.call(put, key, text)

    def note(self, text: str) -> Coroutine[Any, Any, None]:
        """Write a text for later steps."""
        return self.put(text, text)


async def search(reader: str | None, query: str, k: int) -> list[str]:
    return _store(reader).index.best(query, k)


async def get(reader: str | None, key: str) -> str | None:
    return _store(reader).notes.get(key)


async def put(key: str, text: str) -> None:
    """Only recorded: the driver adds the writes of finished episodes."""
    if not (isinstance(key, str) and isinstance(text, str)):
        raise TypeError(f"a note must be a text, got {key!r} and {text!r}")
    _store()


@dataclass(frozen=True)
class Store:
    """What an episode reads."""

    notes: Notes
    readers: list[str] | None

    @cached_property
    def index(self) -> Index:
        return Index([text if key == text else f"{key}: {text}" for key, text in self.notes.items()])


_opened: ContextVar[Store | None] = ContextVar("marl_verl_memory", default=None)


def _store(*reader: str | None) -> Store:
    if (store := _opened.get()) is None:
        raise MarlError(f"the workflow uses team.memory, which this run does not have: set {WHERE}={{}}")
    if reader and store.readers is not None and reader[0] not in store.readers:
        who = f"agent '{reader[0]}'" if reader[0] else "the workflow"
        raise MarlError(f'{who} may not read: team["NAME"].memory of {", ".join(store.readers)} may ({WHERE}.readers)')
    return store


@dataclass(frozen=True)
class Settings:
    """The option `marl.run.memory`."""

    opening: dict[str, str] = field(default_factory=dict)  # notes before the first step
    notes: NonNegative = 1000  # maximum number of notes: the oldest are dropped
    characters: Positive = 2000  # maximum length of a note: the rest is cut off
    readers: list[str] | None = None  # the agents that may read; null: all, and the workflow


class State:
    """The notes of a run, on the driver. A part of a checkpoint."""

    def __init__(self, value: Any) -> None:
        self.settings, self.notes, self._writes = build(Settings, value, WHERE), Notes(), 0
        self._add(self.settings.opening.items())

    def _add(self, writes: Iterable[Sequence[str]]) -> None:
        """Add notes within the limits. One that is written again is the newest."""
        for key, text in writes:
            key, text = key[: self.settings.characters], text[: self.settings.characters]
            self.notes.pop(key, None)
            self.notes |= {key: text} if text else {}
        for key in list(self.notes)[: max(0, len(self.notes) - self.settings.notes)]:
            del self.notes[key]

    def sent(self) -> str:
        return json.dumps([self.notes, self.settings.readers])

    def record(self, reports: Iterable[Any]) -> None:
        ordered = sorted(reports, key=lambda report: report.uid)
        writes = [write for report in ordered for write in report.written.get(NAME, ())]
        self._add(writes)
        self._writes = len(writes)

    def metrics(self) -> dict[str, float]:
        return {"memory/notes": float(len(self.notes)), "memory/writes": float(self._writes)}

    def save(self, folder: Path, step: int) -> None:
        folder.mkdir(parents=True)
        (folder / FILE).write_text(json.dumps(self.notes, indent=1) + "\n", encoding="utf-8")

    def load(self, folder: Path) -> None:
        self.notes = json.loads((folder / FILE).read_text(encoding="utf-8"))


def written(episodes: Sequence[Episode]) -> list[list[str]]:
    """(key, text) of the writes of a task's finished episodes; those of a tree are its paths to a leaf."""
    finished = {(episode.session, episode.id): episode for episode in episodes if episode.finished}
    calls = (call for place in sorted(finished) for call in finished[place].journal.calls())
    return [json.loads(call.arguments) for call in calls if call.function == f"{__name__}:put" and not call.raised]


@lru_cache(maxsize=2)
def _received(sent: str) -> Store:
    return Store(*json.loads(sent))


def enter(sent: str) -> None:
    _opened.set(_received(sent))


def check(value: Any) -> None:
    """MarlError for an invalid option. The rehearsal of the workflow, in this context, reads the opening."""
    _opened.set(None if value is None else _received(State(value).sent()))
