"""Every generator of reasoning-gym as a task set, scored by the generator's own `score_answer`."""

import dataclasses
import decimal
import functools
import hashlib
import random
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, get_type_hints

import numpy as np
import reasoning_gym
from reasoning_gym.composite import DatasetSpec
from reasoning_gym.factory import DATASETS
from reasoning_gym.utils import extract_answer

from marl_verl import Task, TaskSet
from marl_verl.errors import MarlError, unknown
from marl_verl.options import build
from marl_verl.tasks import Split, distinct, held_out
from marl_verl_games.entries import decoded, encoded
from marl_verl_games.safe_scores import make_safe

make_safe()

HELD_OUT = 4  # one question in four belongs to the test split
CHUNK = 64  # entries per seed: some generators refuse a large size
MISSES = 400  # consecutive entries without a new task of the split after which generation fails
ASK = "\n\nEnd with the final answer between <answer> and </answer>."
FROM_RUN = ("size", "seed")


class ReasoningGym(TaskSet):
    """The tasks of one generator. An answer is a text: what its last <answer> tag contains, or all of it without one.

    The score is that of the generator, mostly 0 to 1 (many give a part for a nearly right answer). An answer that makes
    its parser raise an exception has score 0.

    Options:
        dataset: name of a generator, e.g. chain_sum; all other options are those of its config class.
    """

    quick = True

    dataset: str

    @classmethod
    def for_options(cls, options: Mapping[str, Any]) -> type[Self]:
        """The subclass whose fields are the options of the generator that `given` names. MarlError if unknown."""
        name = options.get("dataset")
        if not isinstance(name, str):
            return cls
        if name not in DATASETS:
            raise unknown("marl.task.options.dataset", name, DATASETS)
        return _class_of(name)  # type: ignore[no-any-return]

    def __post_init__(self) -> None:
        try:
            config = DATASETS[self.dataset][1](**self._given())
            if hasattr(config, "validate"):
                config.validate()
        except Exception as error:  # an assertion, or whatever the generator raises
            line = traceback.extract_tb(error.__traceback__)[-1].line
            raise MarlError(f"reasoning-gym '{self.dataset}' refuses these options: {str(error) or line}") from error

    def __reduce__(self) -> Any:
        return build, (ReasoningGym, self._options(), "marl.task.options")

    def generate(self, split: Split, count: int, seed: int) -> list[Task]:
        """`count` tasks with different questions. A question is in one split only, whatever the seed. MarlError: the
        generator fails, or finds too few different questions."""
        entries = self._entries(split, seed)

        def draw() -> Task | None:
            question = str((entry := next(entries))["question"])
            if held_out(f"{self.dataset} {question}", HELD_OUT) != (split == "test"):
                return None
            name = f"reasoning-gym {self.dataset} {hashlib.sha256(question.encode()).hexdigest()[:16]}"
            return Task(name, question + ASK, {"entry": encoded(entry)})

        return distinct(draw, count, split, f"reasoning-gym '{self.dataset}'", MISSES)

    def score(self, task: Task, answer: Any) -> float:
        """The generator's score of a text."""
        tagged, entry = extract_answer(answer), decoded(task.data["entry"])
        try:
            return float(self._scorer.score_answer(answer.strip() if tagged is None else tagged, entry))
        except Exception:  # noqa: BLE001  some parsers of generators raise on a wrong format
            return 0.0

    @functools.cached_property
    def _scorer(self) -> Any:
        return self._made(1, 0)

    def _entries(self, split: Split, seed: int) -> Iterator[dict[str, Any]]:
        for chunk in range(1 << 30):
            digest = hashlib.sha256(f"{self.dataset} {split} {seed} {chunk}".encode()).digest()
            first = int.from_bytes(digest[:3], "big") * CHUNK
            made = self._made(CHUNK, first)
            for index in range(CHUNK):
                with _seeded(first + index):
                    try:
                        entry = made[index]
                    except Exception as error:
                        raise self._failed(error) from error
                yield entry

    def _made(self, size: int, seed: int) -> Any:
        try:
            return reasoning_gym.create_dataset(self.dataset, size=size, seed=seed, **self._given())
        except Exception as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> MarlError:
        line = traceback.extract_tb(error.__traceback__)[-1]
        problem = f"{type(error).__name__}: {str(error) or line.line} ({Path(line.filename).name}:{line.lineno})"
        return MarlError(f"reasoning-gym '{self.dataset}' cannot make a task with these options: {problem}")

    def _options(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def _given(self) -> dict[str, Any]:
        options = {name: value for name, value in self._options().items() if name != "dataset"}
        if self.dataset == "composite":
            where = "marl.task.options.datasets"
            specs = enumerate(options["datasets"] or ())
            options["datasets"] = [build(DatasetSpec, spec, f"{where}.{number}") for number, spec in specs]
        hints = get_type_hints(DATASETS[self.dataset][1])
        return {
            name: tuple(value) if isinstance(value, list) and "tuple" in str(hints[name]).lower() else value
            for name, value in options.items()
        }


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the global random numbers, which some generators use, and restore them and the decimal precision."""
    before, before_numpy = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        with decimal.localcontext():
            yield
    finally:
        random.setstate(before)
        np.random.set_state(before_numpy)


@functools.cache
def _class_of(name: str) -> Any:
    """A subclass with the fields of a generator's config class, except for size and seed."""
    config = DATASETS[name][1]
    hints = get_type_hints(config)
    body: dict[str, Any] = {"__annotations__": {}, "__module__": __name__, "__doc__": ReasoningGym.__doc__}
    for field in dataclasses.fields(config):
        if field.name in FROM_RUN:
            continue
        body["__annotations__"][field.name] = hints[field.name]
        if field.default is not dataclasses.MISSING:
            body[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            body[field.name] = dataclasses.field(default_factory=field.default_factory)
    return type(ReasoningGym.__name__, (ReasoningGym,), body)
