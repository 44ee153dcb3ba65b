"""Tasks of public data sets: from the hub by a set's name, or from a local file with the set's own columns.

    marl.task: {name: math, options: {train: dapo-math-17k, test: aime24}, train_size: 8192, test_size: 30}

Rows with `id`, `prompt` and `data` are tasks already, in any file. Tasks of several held-out sets have the set's name
as `data["set"]` (`SET`), which tasks of a file may have, too.
"""

import contextlib
import hashlib
import json
import random
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from marl_verl.errors import MarlError, MarlWarning, check_known, format_error, nearest, shown, user_error
from marl_verl.options import Positive
from marl_verl.tasks.base import SET, Split, Task, TaskSet, read_rows, read_tasks

Rows = Iterable[tuple[int, dict[str, Any]]]
KEY = "marl.task.options.fields"
VERDICT = re.compile(r"<verify>\s*(\w+)\s*</verify>", re.IGNORECASE)


class Fields:
    """A row of a data set, read with errors that begin with `where`, file and row, and name the field. Names are
    compared without case; where a method takes several, the first that the row has is read."""

    def __init__(self, row: Mapping[str, Any], where: str) -> None:
        self.row, self.where = row, where
        self.read: dict[str, str] = {}  # name -> the column that was read under it
        self._lower = {str(name).lower(): name for name in row}

    def __contains__(self, name: str) -> bool:
        return self.row.get(self._lower.get(name.lower(), name)) is not None

    def value(self, *names: str) -> Any:
        """The value of a field. MarlError without one, or if it is null."""
        for name in names:
            if name in self:
                self.read[name] = self._lower[name.lower()]
                return self.row[self.read[name]]
        hint = nearest(names[0], map(str, self.row)) if self.row else "the row is empty"
        raise MarlError(f"{self.where} has no field {' or '.join(map(repr, names))}: {hint}")

    def text(self, *names: str) -> str:
        """A field's text without white space around it; a number as text. MarlError if it is empty or no text."""
        value = self.value(*names)
        if _is_text(value) and str(value).strip():
            return str(value).strip()
        raise self.wrong("must be a text", value, *names)

    def texts(self, *names: str) -> list[str]:
        """A field's list of texts; a single text or number as a list. MarlError if it is empty, or holds no texts."""
        value = self.value(*names)
        values = value if isinstance(value, list | tuple) else [value]
        texts = [str(text).strip() for text in values if str(text).strip()] if all(map(_is_text, values)) else []
        if not texts:
            raise self.wrong("must be a text, or a list of texts", value, *names)
        return texts

    def items(self, *names: str) -> list[Any]:
        """A field's list, also one that is written as JSON text. MarlError if it is no list."""
        return list(self._decoded(list, "a list", *names))

    def inner(self, *names: str) -> "Fields":
        """The fields of a field's object, also one that is written as JSON text. MarlError if it is no object."""
        return Fields(self._decoded(dict, "an object", *names), f"{self.where}, field '{self._name(*names)}'")

    def wrong(self, message: str, value: Any, *names: str) -> MarlError:
        """The error for a field's value, e.g. `wrong("must be a text", 3, "answer")`."""
        return MarlError(f"{self.where}: field '{self._name(*names)}' {message}, got {shown(value)}")

    def _decoded(self, kind: type, wanted: str, *names: str) -> Any:
        value = self.value(*names)
        try:
            value = json.loads(value) if isinstance(value, str) else value
        except (ValueError, RecursionError) as error:
            if "integer string conversion" in str(error):
                raise LeftOut("with an integer of more than 4,300 digits") from error
        if not isinstance(value, kind):
            raise self.wrong(f"must be {wanted}, or its JSON text", value, *names)
        return value

    def _name(self, *names: str) -> str:
        return next((str(self._lower[name.lower()]) for name in names if name in self), names[0])


def _is_text(value: Any) -> bool:
    """Whether a value is a text or a number. NaN is none: it is what data frames write for a missing value."""
    return isinstance(value, str | int | float) and not isinstance(value, bool) and value == value


class LeftOut(Exception):
    """Raised by `PublicSet.task` for a row that is no task. Rows are counted by its message, e.g. "unanswerable"."""


@dataclass(frozen=True)
class PublicSet:
    """A public data set: its name on the hub, and the task of a row, where `LeftOut` means no task, and any other
    exception is an error that names the row."""

    hub: str
    task: Callable[[Fields], Task]
    config: str | None = None  # the hub's configuration
    splits: Mapping[Split, str] = field(default_factory=lambda: {"train": "train", "test": "test"})  # -> the hub's
    installed: Callable[[], Iterable[dict[str, Any]] | None] = lambda: None  # rows of a package, used if it is there
    files: Mapping[Split, Sequence[str]] | None = None  # of sets with a loading script, which `datasets` 4 does not run

    def described(self, split: Split) -> str:
        part = f"split '{self.splits[split]}'" if self.files is None else ", ".join(self.files[split])
        return f"{self.hub}, {part}"

    def load(self, split: Split) -> Any:
        import datasets

        if self.files is None:
            return datasets.load_dataset(self.hub, self.config, split=self.splits[split])
        paths = [f"hf://datasets/{self.hub}/{path}" for path in self.files[split]]
        kind = "parquet" if paths[0].endswith(".parquet") else "json"
        return datasets.load_dataset(kind, data_files=paths, split="train")


class PublicTasks(TaskSet):
    """Base of task sets of public data sets, which are in `sets`.

    Options:
        train, test: name of the set of a split; null: `train_file` and `test_file` have rows with id, prompt, data. Of
            a list of held-out sets, at most `test_size` tasks each.
        train_rows, test_rows: [first, end] from 0: only these tasks of the set, in its order; end null: to the last.
        most_words: tasks with a longer prompt are left out.
        fields: name that a set reads -> the column of the rows, or a list of columns, whose texts are joined.
            Without a set: `prompt`, and names of `data`.
    """

    sets: ClassVar[Mapping[str, PublicSet]] = {}
    train: str | None = None
    test: str | list[str] | None = None
    train_rows: tuple[int, int | None] | None = None
    test_rows: tuple[int, int | None] | None = None
    most_words: Positive | None = None
    fields: Mapping[str, str | list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in (*self._names("train"), *self._names("test")):
            check_known("public set", name, self.sets)

    def generate(self, split: Split, count: int, seed: int) -> list[Task]:
        """Up to `count` random tasks of each of the hub's sets, in its order. MarlError without a set."""
        names = self._names(split)
        if not names:
            how = f"set marl.task.{split}_file, or marl.task.options.{split} to one of {', '.join(self.sets)}"
            raise MarlError(f"no public set of {split} tasks is chosen: {how}")
        if len(names) == 1:
            return self._drawn(names[0], split, count, seed)
        tasks: dict[str, Task] = {}
        for name in names:
            for task in self._drawn(name, split, count, seed):
                id = f"{task.id}-{name}" if task.id in tasks else task.id  # a problem of two sets
                tasks[id] = replace(task, id=id, data={**task.data, SET: name})
        return list(tasks.values())

    def _drawn(self, name: str, split: Split, count: int, seed: int) -> list[Task]:
        public = self._public(name, split)
        rows: Any = public.installed()
        if rows is None:
            how = f"install datasets, or set marl.task.{split}_file to its rows"
            with user_error(f"public set '{name}' cannot be loaded from '{public.hub}' on the hub ({how})", Exception):
                rows = public.load(split)
        tasks = self._tasks(enumerate(rows, start=1), split, f"public set '{name}'", name)
        if getattr(self, f"{split}_rows") is not None or len(tasks) <= count:
            return tasks
        chosen = random.Random(f"{name} {split} {seed}").sample(range(len(tasks)), count)
        return [tasks[index] for index in sorted(chosen)]

    def loads(self, split: Split) -> str | None:
        """The hub's sets and their splits; None where an installed package has them."""
        sets = [self._public(name, split) for name in self._names(split)]
        return " and ".join(public.described(split) for public in sets if public.installed() is None) or None

    def _names(self, split: Split) -> tuple[str, ...]:
        names = getattr(self, split)
        return () if names is None else (names,) if isinstance(names, str) else tuple(dict.fromkeys(names))

    def _public(self, name: str, split: Split) -> PublicSet:
        public = self.sets[name]
        if split not in public.splits:
            raise MarlError(f"public set '{name}' has no {split} tasks: it is {' and '.join(public.splits)} data")
        return public

    def read(self, path: Path, split: Split) -> list[Task]:
        """The tasks of a file with rows of the split's set, of the columns `fields`, or with rows that are tasks."""
        label, names = f"task file '{path}'", self._names(split)
        first = next((row for _, row in read_rows(path, "task file")), {})
        if self.fields or (names and not {"id", "prompt", "data"} <= set(first)):
            if len(names) > 1:
                several = f"marl.task.options.{split} names {len(names)} sets, whose rows differ"
                raise MarlError(f"{label}: {several}. Name one, or write tasks with id, prompt and data.")
            return self._tasks(read_rows(path, "task file"), split, label, next(iter(names), None), warn=True)
        tasks = read_tasks(path)
        for task in tasks:
            self.check(task)
        return self._part(tasks, split, label, Counter())

    def check(self, task: Task) -> None:
        """MarlError if a task of a file has no answer that could be scored."""

    def row_task(self, row: Fields) -> Task:
        """The task of a row without a set: `prompt`, its `data`, and the names of `fields` in it."""
        prompt, data = row.text("prompt"), row.row.get("data")
        with contextlib.suppress(ValueError, RecursionError):
            data = json.loads(data) if isinstance(data, str) else data  # parquet often holds JSON as text
        if isinstance(data, dict):
            row.read["data"] = "data"
        values = {name: row.value(name) for name in self.fields if name not in ("id", "prompt")}
        name = row.text("id") if "id" in self.fields else task_id("task", prompt)
        return Task(name, prompt, {**(data if isinstance(data, dict) else {}), **values})

    def _tasks(self, rows: Rows, split: Split, label: str, name: str | None, warn: bool = False) -> list[Task]:
        """The tasks of the rows of the set `name`, each once; a MarlWarning has the number of rows left out, and with
        `warn` the columns that are not read."""
        task_of = self.row_task if name is None else self.sets[name].task
        tasks: dict[str, Task] = {}
        columns: dict[str, None] = {}
        mapped = {column for names in self.fields.values() for column in ([names] if isinstance(names, str) else names)}
        left: Counter[str] = Counter()
        for number, row in rows:
            where = f"{label}, row {number}"
            fields = Fields(self._renamed(row, where) if self.fields else row, where)
            try:
                task = task_of(fields)
            except LeftOut as reason:
                left[str(reason)] += 1
                continue
            except MarlError:
                raise
            except Exception as error:  # whatever a row of another form makes a set's function raise
                raise MarlError(f"{where}: {format_error(error)}") from error
            for option in (option for option in self.fields if option.lower() not in map(str.lower, fields.read)):
                hint = nearest(option, fields.read)
                raise MarlError(f"{KEY} has '{option}', which public set '{name}' does not read: {hint}")
            known = {*fields.read.values(), *mapped}
            columns |= {str(column): None for column in row if column not in known}
            if name is None:
                self.check(task)
            if (first := tasks.setdefault(task.id, task)) is not task:
                left["repeated" if first.data == task.data else "repeated with other data"] += 1
        if warn and columns:
            problem = f"{label}: columns {', '.join(columns)} are not read. Where they belong to question or answer"
            warnings.warn(f"{problem}, {KEY} maps or joins them.", MarlWarning, stacklevel=2)
        return self._part(list(tasks.values()), split, label, left)

    def _renamed(self, row: Mapping[str, Any], where: str) -> dict[str, Any]:
        """A row with the columns of `fields` under the names that are read. MarlError if a column is missing."""
        columns, lower = Fields(row, where), {name.lower() for name in self.fields}
        named = {
            name: columns.value(column)
            if isinstance(column, str)
            else "\n\n".join(_joined(columns.value(part)) for part in column)
            for name, column in self.fields.items()
        }
        return {column: value for column, value in row.items() if str(column).lower() not in lower} | named

    def _part(self, tasks: list[Task], split: Split, label: str, left: Counter[str]) -> list[Task]:
        if (most := self.most_words) is not None:
            left[f"longer than {most} words"] += sum(len(task.prompt.split()) > most for task in tasks)
            tasks = [task for task in tasks if len(task.prompt.split()) <= most]
        first, end = getattr(self, f"{split}_rows") or (0, None)
        tasks = tasks[first:end]
        out = ", ".join(f"{times} {reason}" for reason, times in left.items() if times)
        if not tasks:
            raise MarlError(f"{label} has no tasks" + (f"; rows left out: {out}" if out else ""))
        if out:
            warnings.warn(f"{label}: {len(tasks)} tasks; rows left out: {out}", MarlWarning, stacklevel=2)
        return tasks


def _joined(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def task_id(family: str, text: str) -> str:
    """An id from the hash of a problem's words: the same in every file, so that no test task is in training."""
    return f"{family}-{hashlib.sha256(' '.join(text.split()).encode()).hexdigest()[:16]}"


def verdict(text: str, words: Sequence[str]) -> str | None:
    """The one of `words` (lower case) in `<verify>` tags; None without one, or with different ones."""
    verdicts = {word.lower() for word in VERDICT.findall(text)} & set(words)
    return verdicts.pop() if len(verdicts) == 1 else None


def clipped(text: str, most: int) -> str:
    """A text of at most `most` characters: cut in the middle, since the end has the answer or verdict."""
    if len(text) <= most:
        return text
    cut = "\n[...]\n"
    head = max(0, (most - len(cut)) // 2)
    tail = max(0, most - len(cut) - head)
    return text[:head] + cut + text[len(text) - tail :]
