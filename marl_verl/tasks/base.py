"""Task sets, which score the team's answer; and random generation of different tasks, each of which belongs to one
split for every seed."""

import hashlib
import random
from abc import abstractmethod
from collections.abc import Callable, Mapping
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from marl_verl.errors import MarlError
from marl_verl.options import Options
from marl_verl.tasks.task import Split, Task, winner
from marl_verl.tasks.task_files import read_tasks

F = TypeVar("F", bound=Callable[..., Any])

TRIES = 10_000  # consecutive draws without a new task after which generation fails


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
        """The sides that `score` has a number for; () if it returns the team's. Compared with the agents' before a run
        starts."""
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


class DrawnTasks(TaskSet):
    """Base of task sets that draw random tasks, each in one split only, and demonstrations for the models of agents."""

    name: ClassVar[str]
    agents: ClassVar[tuple[str, ...]]

    def generate(self, split: Split, count: int, seed: int) -> list[Task]:
        """`count` different tasks. MarlError if the split has fewer."""
        rng = random.Random(f"{self.name} {split} {seed}")
        return distinct(lambda: self._draw(rng, split), count, split, self.name)

    def demonstrations(self, agent: str, count: int, seed: int, good: float) -> list[tuple[str, str]]:
        """(observation, answer) pairs of training tasks: a share `good` is right, the others are careless."""
        self.agents.index(agent)  # ValueError for an agent that the task does not have: it would learn another's part
        rng = random.Random(f"{self.name} demonstrations {agent} {seed}")
        tasks = (distinct(lambda: self._draw(rng, "train"), 1, "train", self.name)[0] for _ in range(count))
        return [self._demonstration(agent, task, rng, good) for task in tasks]

    @abstractmethod
    def _draw(self, rng: random.Random, split: Split) -> Task | None:
        """One random task, or None if it is not in this split."""

    @abstractmethod
    def _demonstration(self, agent: str, task: Task, rng: random.Random, good: float) -> tuple[str, str]:
        """What an agent sees and answers, right with probability `good`."""


def quick(fn: F) -> F:
    """Declare that a score or role reward ends soon, whatever a model writes: it runs in a thread of the rollout worker
    instead of a process of its own. A task set declares it for its scores with the attribute `quick = True`."""
    fn.quick = True  # type: ignore[attr-defined]
    return fn


def is_quick(fn: Callable[..., Any]) -> bool:
    """Whether a function, or the object whose method it is, is declared quick."""
    return bool(getattr(fn, "quick", False) or getattr(getattr(fn, "__self__", None), "quick", False))


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
