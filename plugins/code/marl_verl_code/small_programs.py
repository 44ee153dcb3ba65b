"""Small programs: the family's task and workflow for tiny models, e.g. "plus 7" for `print(int(input()) + 7)`.

Answers have line breaks, which the models with byte-pair encoding can write (`tiny: {family: llama}`).
"""

import json
import random
from typing import Annotated, Any

from annotated_types import Interval

from marl_verl import Task
from marl_verl.tasks import DrawnTasks
from marl_verl_code.code_tests import CodeWithTests
from marl_verl_code.coder_tester import CODER, TESTER, CoderTester

SIGNS = {"plus": "+", "minus": "-", "times": "*"}
INPUTS = (3, 0, -2, 11)
"""Inputs of the tests; the first is public."""


class SmallPrograms(DrawnTasks, CodeWithTests):
    """Programs that read a number and print it plus, minus or times another one, judged by four tests.

    In careless demonstrations the coder writes the wrong sign, and the tester a test with the wrong output.

    Options:
        largest: the largest number in a task.
    """

    name = "small-programs"
    agents = (CODER, TESTER)
    largest: Annotated[int, Interval(ge=9, le=999)] = 99

    def vocabulary(self) -> list[str]:
        numbers = [str(number) for number in range(self.largest + 1)]
        coder = ["```python", "print(int(input())", "```", "python", "print", "int", "input"]
        tester = ["```json", '[{"input":', '"output":', '"0",', '"1",', '"}]', "output", "json"]
        return [*numbers, *SIGNS, *SIGNS.values(), "failed", *coder, *tester]

    def _demonstration(self, agent: str, task: Task, rng: random.Random, good: float) -> tuple[str, str]:
        word, number = task.prompt.split()
        right = rng.random() < good
        failed = [tested(word, int(number), True)] if rng.random() < 0.3 else []
        if agent == CODER:
            wrong = rng.choice([other for other in SIGNS if other != word])
            answer = fenced("python", program(word if right else wrong, number))
        else:
            answer = fenced("json", json.dumps([tested(word, int(number), right)]))
        return sees(task, failed), answer

    def _random_task(self, rng: random.Random) -> tuple[str, Task]:
        word, number = rng.choice(list(SIGNS)), rng.randint(2, self.largest)
        prompt = f"{word} {number}"
        first, *others = ({"input": f"{value}\n", "output": f"{result(word, value, number)}\n"} for value in INPUTS)
        data = {"public": [first], "private": others, "solution": program(word, str(number))}
        return prompt, Task(f"small-programs {prompt}", prompt, data)


class TinyCoderTester(CoderTester):
    """`coder-tester` with observations in the words of tiny models."""

    def sees(self, task: Task, agent: str, before: str | None, failed: list[dict[str, Any]]) -> str:
        return sees(task, failed)


def sees(task: Task, failed: list[dict[str, Any]]) -> str:
    return f"{task.prompt} failed {failed[0]['input'].strip()[:8]}" if failed else task.prompt


def program(word: str, number: str) -> str:
    return f"print(int(input()) {SIGNS[word]} {number})"


def result(word: str, one: int, other: int) -> int:
    return {"plus": one + other, "minus": one - other, "times": one * other}[word]


def tested(word: str, number: int, right: bool) -> dict[str, str]:
    """A test with an easy input; a wrong one has the input as its output."""
    value = 1 if word == "times" else 0
    return {"input": str(value), "output": str(result(word, value, number) if right else value)}


def fenced(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"
