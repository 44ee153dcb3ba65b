"""Tasks, their files, and task sets, which score the team's answer; and random generation of different tasks, each of
which belongs to one split for every seed."""

import hashlib
import itertools
import json
import math
import random
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import msgspec

from marl_verl.errors import MarlError, check_file, check_known, user_error
from marl_verl.options import Options

F = TypeVar("F", bound=Callable[..., Any])
Split = Literal["train", "test"]
SPLITS: tuple[Split, ...] = ("train", "test")
SET = "set"  # in a task's `data`: the public set that it is from; held-out success is also reported for each
TRIES = 10_000  # consecutive draws without a new task after which generation fails
SCORED = "function-scored"  # the task set that wraps the one of its option `task`, with its `options`
ROW = "reward_model"  # what only rows of verl's form have
ANSWERS = (ROW, "answer", "answers", "solution", "aliases")
BESIDE = ("extra_info", "data_source", SET)  # numbers of rows, and names of files


@dataclass(frozen=True)
class Task:
    """One problem.

    Attributes:
        id: unique in its task set and stable between runs (it identifies held-out tasks).
        prompt: the problem as text; a workflow may instead show an agent a part of `data`.
        data: all other data for workflow and scoring, as JSON values.
    """

    id: str
    prompt: str
    data: dict[str, Any] = field(default_factory=dict)


class TaskSet(Options):
    """A family of tasks and their scoring. Annotated attributes are its options in config (`marl.task.options`).

    Scores run in a process of their own, which a time limit can end; `quick = True` declares that this is not needed.
    `slow = True` declares that `generate` takes minutes: a dry run then generates only the tasks that it looks at.

    The team reward of an answer is `scale` * score + `shift`, in returns and in rules of samplers; reported scores are
    without it. A task set that annotates `scale: float = 1.0` or `shift: float = 0.0` makes them options.
    """

    quick: ClassVar[bool] = False
    slow: ClassVar[bool] = False
    scale = 1.0
    shift = 0.0

    def generate(self, split: Split, count: int, seed: int) -> list[Task]:
        """Generate `count` tasks of a split, deterministic in the seed; no task of "test" may be in "train"."""
        raise MarlError(f"{type(self).__name__} cannot generate tasks: set marl.task.{split}_file")

    def loads(self, split: Split) -> str | None:
        """What `generate` downloads, in words; None if it downloads nothing. A dry run names it and loads nothing."""
        return None

    def read(self, path: Path, split: Split) -> list[Task]:
        """The tasks of `marl.task.SPLIT_file`. MarlError for an unreadable file or row."""
        return read_tasks(path)

    @property
    def sides(self) -> tuple[str, ...]:
        """The sides that `score` has a number for; () if it returns the team's. Checked before a run starts."""
        return ()

    def score(self, task: Task, answer: Any) -> Any:
        """The team reward of an episode with this answer, a number; or side -> number, a number for each side of the
        team (`marl.agents.NAME.side`), which is the team reward of its agents. May be async."""
        raise NotImplementedError(f"{type(self).__name__} has no score")

    def success(self, task: Task, answer: Any) -> Any:
        """Whether the team solved the task, as counted by validation. May be async. This default is not called if the
        answer has already been scored; of a score per side it is whether a side won: has more than every other."""
        score = self.score(task, answer)
        return winner(score) is not None if isinstance(score, Mapping) else score >= 1.0

    def reference(self, task: Task) -> Any:
        """An answer that solves the task, if its data has one; None without. Checked before a run starts."""
        return None

    def measures(self, task: Task, answer: Any) -> Any:
        """Numbers about an answer beside its score, {name: number}, such as the share of tests that it passes: no
        reward uses them. May be async. Their means over the episodes are the metrics `train/answer/NAME` and
        `validation/answer/NAME`, 0 for an episode without an answer. An error is logged, and the episode left out."""
        return {}

    def public_score(self, task: Task, answer: Any) -> Any:
        """The score of an answer without the solution (public tests, a format check), a number. Inference chooses among
        attempts by it; `score` then scores the chosen one. May be async."""
        raise NotImplementedError(f"{type(self).__name__} has no public_score, which choosing among attempts needs")


def is_default(tasks: TaskSet, name: str) -> bool:
    """Whether a method is `TaskSet`'s own, and not of a subclass or of another task set that answers in its place."""
    return getattr(getattr(tasks, name), "__func__", None) is getattr(TaskSet, name)


class DrawnTasks(TaskSet):
    """Base of task sets that draw random tasks, each in one split only, and demonstrations for the models of agents."""

    name: ClassVar[str]
    agents: ClassVar[tuple[str, ...]]
    one_in: ClassVar[int] = 10  # one task in ten is in the test split

    def generate(self, split: Split, count: int, seed: int) -> list[Task]:
        """`count` different tasks. MarlError if the split has fewer."""
        rng = random.Random(f"{self.name} {split} {seed}")
        return distinct(lambda: self._draw(rng, split), count, split, self.name)

    def demonstrations(self, agent: str, count: int, seed: int, good: float) -> list[tuple[str, str]]:
        """(observation, answer) pairs of training tasks: a share `good` is right, the others are careless."""
        check_known("agent", agent, self.agents)  # one that the task does not have would learn another's part
        rng = random.Random(f"{self.name} demonstrations {agent} {seed}")
        pairs = (self._demonstration(agent, self._next_task(rng, "train"), rng, good) for _ in itertools.count())
        return list(itertools.islice(filter(None, pairs), count))

    def _next_task(self, rng: random.Random, split: Split) -> Task:
        return distinct(lambda: self._draw(rng, split), 1, split, self.name)[0]

    def _draw(self, rng: random.Random, split: Split) -> Task | None:
        """One random task, or None if it is not in this split."""
        drawn = self._random_task(rng)
        return drawn[1] if drawn and held_out(drawn[0], self.one_in) == (split == "test") else None

    @abstractmethod
    def _random_task(self, rng: random.Random) -> tuple[str, Task] | None:
        """(the text that decides the split of a random task, the task); None for a draw that makes no task."""

    @abstractmethod
    def _demonstration(self, agent: str, task: Task, rng: random.Random, good: float) -> tuple[str, str] | None:
        """What an agent sees and answers, right with probability `good`; None where the task has nothing to do."""


def quick(fn: F) -> F:
    """Declare that a score or role reward ends soon, whatever a model writes: it runs in a thread of the rollout worker
    instead of a process of its own. A task set declares it for its scores with the attribute `quick = True`."""
    fn.quick = True  # type: ignore[attr-defined]
    return fn


def is_quick(fn: Callable[..., Any]) -> bool:
    """Whether a function, or the object whose method it is, is declared quick."""
    return bool(getattr(fn, "quick", False) or getattr(getattr(fn, "__self__", None), "quick", False))


def name_of(fn: Callable[..., Any]) -> str:
    """The name of a score in errors: that of the user's function which a task set calls (`scored_by`), else its own."""
    named = getattr(getattr(fn, "__self__", None), "scored_by", None)
    return str(named or getattr(fn, "__qualname__", type(fn).__qualname__))


class DetailedScore(float):
    """A score with its `parts`, e.g. of format and accuracy, which an algorithm may name as reward components."""

    parts: Mapping[str, float] = {}

    @classmethod
    def of(cls, result: Any) -> Any:
        """What a score function of verl returned: of a mapping with a number "score", the score with its numbers as
        parts; of another mapping, its "score"; else the result."""
        score = result.get("score") if isinstance(result, Mapping) else result
        if not isinstance(result, Mapping) or not isinstance(score, Real):
            return score
        detailed = cls(float(score))
        detailed.parts = {str(name): float(value) for name, value in result.items() if isinstance(value, Real)}
        return detailed


def distinct(draw: Callable[[], Task | None], count: int, split: Split, name: str, tries: int = TRIES) -> list[Task]:
    """Draw `count` different tasks; `draw` returns a random one, or None if it is not in this split. MarlError (with
    the prefix `name`) if the split has fewer."""
    tasks: dict[str, Task] = {}
    misses = 0
    while len(tasks) < count:
        task = draw()
        misses += 1
        if task is not None and task.id not in tasks:
            tasks[task.id], misses = task, 0
        elif misses == tries:
            few = f"{name}: found only {len(tasks)} of {count} different {split} tasks"
            raise MarlError(f"{few}. Set marl.task.{split}_size to at most {len(tasks)}.")
    return list(tasks.values())


def held_out(text: str, one_in: int) -> bool:
    """Whether the task that a text describes is in split "test": one in `one_in` is, by a hash independent of seeds."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % one_in == 0


def winner(outcomes: Mapping[str, float]) -> str | None:
    """The side with the highest outcome; None if several have it, or without outcomes."""
    best = [side for side, outcome in outcomes.items() if outcome == max(outcomes.values())]
    return best[0] if len(best) == 1 else None


def side_statistics(episodes: Sequence[Mapping[str, float]]) -> dict[str, dict[str, Any]]:
    """Side -> `outcome`, the mean of its scores, and `wins`, the share of `episodes` (side -> score) that it won."""
    winners = [winner(outcomes) for outcomes in episodes]
    statistics: dict[str, dict[str, Any]] = {}
    for side in dict.fromkeys(side for outcomes in episodes for side in outcomes):
        scores = [outcomes[side] for outcomes in episodes if side in outcomes]
        statistics[side] = {"outcome": sum(scores) / len(scores), "wins": winners.count(side) / len(episodes)}
    return statistics


def wilson(successes: float, tasks: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's 95 % confidence interval of a share, (low, high) in [0, 1]; (0, 1) without tasks.

    (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)    (Wilson 1927)
    """
    if tasks == 0:
        return 0.0, 1.0
    share = successes / tasks
    middle = share + z * z / (2 * tasks)
    spread = z * math.sqrt(share * (1 - share) / tasks + z * z / (4 * tasks * tasks))
    scale = 1 + z * z / tasks
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)


def write_tasks(tasks: Iterable[Task], path: Path) -> None:
    """Write one JSON line per task. MarlError, and no file, if a task's data is not JSON-serialisable."""
    lines = []
    for task in tasks:
        with user_error(f"the data of task '{task.id}' cannot be written as JSON", TypeError, ValueError):
            lines.append(json.dumps({"id": task.id, "prompt": task.prompt, "data": task.data}) + "\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines), encoding="utf-8")


def read_tasks(path: Path) -> list[Task]:
    """The tasks of a file of `read_rows`; what a workflow or score needs must be in 'data'. MarlError without any."""
    tasks = [_task(row, f"task file '{path}', row {number}") for number, row in read_rows(path, "task file")]
    if not tasks:
        raise MarlError(f"task file '{path}' is empty")
    return tasks


def read_rows(path: Path, label: str = "file") -> Iterator[tuple[int, dict[str, Any]]]:
    """(number, row) of a `.parquet` file, or of JSON lines or a JSON list in any other file. MarlError, beginning with
    `label`: missing file, not JSON or parquet, or a row that is not an object."""
    check_file(label, path)
    yield from enumerate(_parquet(path, label) if path.suffix == ".parquet" else _json(path, label), start=1)


def _parquet(path: Path, label: str) -> Iterator[Any]:
    import pyarrow.parquet

    problem = f"{label} '{path}' is not parquet"
    with user_error(problem, pyarrow.ArrowException, OSError), pyarrow.parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=4096):  # a set of millions of rows is not in memory as a whole
            yield from batch.to_pylist()


def _json(path: Path, label: str) -> Iterator[Any]:
    number = 0
    try:
        text = path.read_text(encoding="utf-8-sig")
        if text.lstrip().startswith("["):
            yield from map(dict, json.loads(text))
            return
        for line in text.split("\n"):  # splitlines() also splits at U+2028 inside a text
            number += 1
            if line.strip():
                yield dict(json.loads(line))
    except (TypeError, ValueError, RecursionError) as error:  # not UTF-8, or not JSON
        place = f", line {number} is not a JSON object" if number else " is not a JSON list, or not UTF-8 text"
        raise MarlError(f"{label} '{path}'{place}: {error}") from error


def _task(row: dict[str, Any], where: str) -> Task:
    data = row.get("data")
    if {"id", "prompt"} < row.keys() and "data" not in row:  # a score would read nothing
        raise MarlError(f"{where} has {', '.join(row)}, but no 'data': move what a score reads into it, or write {{}}")
    with user_error(where, ValueError, RecursionError, msgspec.ValidationError):
        data = json.loads(data) if isinstance(data, str) else data or {}  # parquet often holds JSON as text
        return msgspec.convert({**row, "data": data}, Task)


def observation(task: Task) -> str | list[dict[str, str]]:
    """What an agent that is given a whole task sees: its messages, else its prompt."""
    return task.data.get("messages") or task.prompt


def trained(training: Sequence[Task], test: Iterable[Task], files: bool) -> list[Task]:
    """The test tasks that are training tasks: in rows of files those with the same question, apart from white space; of
    generated tasks, and for a question that several training tasks ask, those with the same id."""
    ids = {task.id for task in training}
    if not (files or any(ROW in task.data for task in training)):
        return [task for task in test if task.id in ids]
    times = Counter(map(_question, training))
    asked = ((task, times[_question(task)]) for task in test)
    return [task for task, number in asked if number == 1 or (number and task.id in ids)]


def _question(task: Task) -> str:
    """What is asked: the prompt, and the data but the answer."""
    data = {name: value for name, value in task.data.items() if name not in (*BESIDE, *ANSWERS)}
    return json.dumps([task.prompt.split(), data], sort_keys=True)
