"""Every generator of reasoning-gym as a task set, scored by the generator's own `score_answer`."""

import ast
import decimal
import hashlib
import importlib
import itertools
import random
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import reasoning_gym
from reasoning_gym.composite import DatasetSpec
from reasoning_gym.factory import DATASETS
from reasoning_gym.utils import extract_answer
from sympy.parsing.sympy_parser import parse_expr

from marl_verl import Task, TaskSet
from marl_verl.errors import check_known, user_error
from marl_verl.tasks import Split, distinct, held_out

LITERALS = (
    "algorithmic.binary_matrix",
    "algorithmic.number_sorting",
    "algorithmic.spiral_matrix",
    "algorithmic.string_insertion",
    "games.n_queens",
)
"""Modules of reasoning-gym whose scores call `eval`."""
ARITHMETIC = ("games.countdown", "games.puzzle24")
"""Modules whose scores call SymPy's parser for numbers and + - * / and parentheses."""
REMOVED = ("intermediate_integration", "polynomial_multiplication", "simple_integration")
"""Generators whose scores simplify a formula of the model, on which SymPy may work for ever."""
MOST = 500  # characters


def arithmetic(text: str, *arguments: Any, **options: Any) -> Any:
    """SymPy's `parse_expr` of numbers and operators, without powers. ValueError: the text is something else."""
    if len(text) > MOST or "**" in text or not re.fullmatch(r"[\d\s.+\-*/()]*", text):
        raise ValueError("no arithmetic")
    return parse_expr(text, *arguments, **options)


# Replace the parsers in reasoning-gym's modules and remove generators, also for `composite`.
for _name in REMOVED:
    del DATASETS[_name]
for _name in LITERALS:
    vars(importlib.import_module(f"reasoning_gym.{_name}"))["eval"] = ast.literal_eval
for _name in ARITHMETIC:
    vars(importlib.import_module(f"reasoning_gym.{_name}"))["parse_expr"] = arithmetic

HELD_OUT = 4  # one question in four belongs to the test split
CHUNK = 64  # entries per seed: some generators refuse a large size
MISSES = 400  # consecutive entries without a new task of the split after which generation fails
ASK = "\n\nEnd with the final answer between <answer> and </answer>."


class ReasoningGym(TaskSet):
    """The tasks of one generator. An answer is a text: what its last <answer> tag contains, or all of it without one.

    The score is that of the generator, mostly 0 to 1 (many give a part for a nearly right answer). An answer that makes
    its parser raise an exception has score 0.

    Options:
        dataset: name of a generator, e.g. chain_sum.
        config: options of its config class, e.g. {min_terms: 2}, without size and seed.
    """

    quick = True

    dataset: str
    config: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        check_known("marl.task.options.dataset", self.dataset, DATASETS)
        self._scorer = self._made(1, 0)

    def generate(self, split: Split, count: int, seed: int) -> list[Task]:
        """`count` tasks with different questions. A question is in one split only, whatever the seed. MarlError: the
        generator fails, or has too few different questions."""
        entries = self._entries(split, seed)

        def draw() -> Task | None:
            question = str((entry := next(entries))["question"])
            if held_out(f"{self.dataset} {question}", HELD_OUT) != (split == "test"):
                return None
            name = f"reasoning-gym {self.dataset} {hashlib.sha256(question.encode()).hexdigest()[:16]}"
            with np.printoptions(legacy="1.25"):  # JSON has no tuples and sets; numbers of NumPy become Python's
                return Task(name, question + ASK, {"entry": repr(entry)})

        return distinct(draw, count, split, f"reasoning-gym '{self.dataset}'", MISSES)

    def score(self, task: Task, answer: Any) -> float:
        tagged, entry = extract_answer(answer), ast.literal_eval(task.data["entry"])
        try:
            return float(self._scorer.score_answer(answer.strip() if tagged is None else tagged, entry))
        except Exception:  # noqa: BLE001  some parsers of generators raise on a wrong format
            return 0.0

    def _entries(self, split: Split, seed: int) -> Iterator[dict[str, Any]]:
        for chunk in itertools.count():
            digest = hashlib.sha256(f"{self.dataset} {split} {seed} {chunk}".encode()).digest()
            first = int.from_bytes(digest[:3], "big") * CHUNK
            dataset = self._made(CHUNK, first)
            for index in range(CHUNK):
                with _seeded(first + index), user_error(f"reasoning-gym '{self.dataset}'", Exception, line=True):
                    entry = dataset[index]
                yield entry

    def _made(self, size: int, seed: int) -> Any:
        options = dict(self.config or {})
        with user_error(f"reasoning-gym '{self.dataset}' refuses marl.task.options.config", Exception):
            if self.dataset == "composite":
                options["datasets"] = [DatasetSpec(**spec) for spec in options.get("datasets", [])]
            return reasoning_gym.create_dataset(self.dataset, size=size, seed=seed, **options)


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
