"""Inventory: one agent holds a list, the other is asked for one entry of it. A shorter task than Plan-Path, for tests.

The holder sees digits in order and sends as many; the asker sees an index and the message, and answers one digit.
"""

from __future__ import annotations

import random
from typing import Any

from marl_verl.errors import MarlError, unknown
from marl_verl.tasks.base import Split, Task, TaskSet
from marl_verl.tasks.draw import distinct, held_out

HOLDER, ASKER = "holder", "asker"
DIGITS = tuple("0123456789")
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth")
NOTHING = "none"  # what the asker reads when the holder did not send as many digits as it holds
HELD_OUT = 10  # one list in ten


class Inventory(TaskSet):
    """Tasks on random lists of digits.

    Options:
        length: digits in a list (2 to 9).
    """

    length: int = 4

    def __post_init__(self) -> None:
        if not 2 <= self.length <= 9:
            raise MarlError(f"inventory: length must be 2 to 9, got {self.length}")

    def generate(self, split: Split, count: int, seed: int) -> list[Task]:
        """`count` different tasks. A list of digits is in one split only, whatever the seed.

        Raises:
            MarlError: the split has not that many (short lists).
        """
        rng = random.Random(f"inventory {split} {seed}")
        return distinct(lambda: self._draw(rng, split), count, split, "inventory")

    def score(self, task: Task, answer: Any) -> float:
        """1 when the answer is the digit asked for, else 0.

        Raises:
            MarlError: the answer is no text.
        """
        if not isinstance(answer, str):
            raise MarlError(f"inventory scores a digit as text, got {type(answer).__name__}")
        return float(answer.strip() == task.data["digits"][task.data["index"] - 1])

    def public_score(self, task: Task, answer: Any) -> float:
        """1 when the answer is one digit, right or not, else 0: what shows without the list.

        Raises:
            MarlError: the answer is no text.
        """
        if not isinstance(answer, str):
            raise MarlError(f"inventory scores a digit as text, got {type(answer).__name__}")
        return float(answer.strip() in DIGITS)

    def vocabulary(self) -> list[str]:
        """Every word that an observation or an answer can hold."""
        return [*DIGITS, *ORDINALS[: self.length], "digits", "index", "message", NOTHING]

    def demonstrations(self, agent: str, count: int, seed: int, good: float) -> list[tuple[str, str]]:
        """(observation, answer) pairs of a mixed crowd, on training lists only.

        A share `good` is right. Of the others, the careless holder repeats the first digit, and the careless asker
        answers the first digit of the message.
        """
        if agent not in (HOLDER, ASKER):
            raise unknown("agent of inventory", agent, (HOLDER, ASKER))
        rng = random.Random(f"inventory demonstrations {agent} {seed}")
        pairs: list[tuple[str, str]] = []
        for _ in range(count):
            (task,) = distinct(lambda: self._draw(rng, "train"), 1, "train", "inventory")
            digits, index = task.data["digits"], task.data["index"]
            right = rng.random() < good
            if agent == HOLDER:
                pairs.append((holder_sees(task), " ".join(digits if right else digits[:1] * self.length)))
            else:
                pairs.append((asker_sees(task, " ".join(digits)), digits[index - 1] if right else digits[0]))
        return pairs

    def _draw(self, rng: random.Random, split: Split) -> Task | None:
        """One random task, or None where the draw is no task of this split."""
        digits = rng.choices(DIGITS, k=self.length)
        index = rng.randint(1, self.length)
        words = " ".join(digits)
        is_test = held_out(words, HELD_OUT)
        if is_test != (split == "test"):
            return None
        prompt = f"digits {words} index {ORDINALS[index - 1]}"
        return Task(id=f"inventory {prompt}", prompt=prompt, data={"digits": digits, "index": index})


def holder_sees(task: Task) -> str:
    """The holder's observation: the digits in order."""
    return f"digits {' '.join(task.data['digits'])}"


def asker_sees(task: Task, message: str) -> str:
    """The asker's observation: what the holder sent, and which digit is wanted (in words: an index is no digit)."""
    return f"message {message} index {ORDINALS[task.data['index'] - 1]}"
