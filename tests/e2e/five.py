"""Plugin of the topology tests: five agents say two digits, each having heard what another one said.

The text that one policy gives goes into the observation of the next, whose tokenizer may be another. Who acts how often
depends on the digits, so that the policies get different numbers of rows, which divide by nothing.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from marl_verl import Task, TaskSet, Workflow, hookimpl

DIGITS = "0123456789"
AGENTS = ("left", "right", "tuned", "foreign", "judge")


class TwoDigits(TaskSet):
    """Two digits, to be said by everybody."""

    def generate(self, split: str, count: int, seed: int) -> list[Task]:
        """The parity of their sum tells the splits apart."""
        rng = random.Random(f"{split}{seed}")
        pairs = [(a, b) for a in DIGITS for b in DIGITS if (int(a) + int(b)) % 2 == (split == "test")]
        chosen = rng.sample(pairs, count)
        return [Task(f"two {a} {b}", f"digits {a} {b}", {"digits": [a, b]}) for a, b in chosen]

    def score(self, task: Task, answer: Any) -> float:
        """The share of answers that are right."""
        wanted = " ".join(task.data["digits"])
        return sum(given == wanted for given in answer) / len(answer)

    def vocabulary(self) -> list[str]:
        return ["digits", "heard", *DIGITS]

    def demonstrations(self, agent: str, count: int, seed: int, good: float) -> list[tuple[str, str]]:
        rng = random.Random(f"{agent}{seed}")
        pairs = []
        for _ in range(count):
            a, b, c, d = (rng.choice(DIGITS) for _ in range(4))
            seen = f"digits {a} {b}" if agent in AGENTS[:2] else f"digits {a} {b} heard {c} {d}"
            pairs.append((seen, f"{a} {b}" if rng.random() < good else f"{c} {d}"))
        return pairs


def acts(digits: list[str]) -> Counter[str]:
    """Agent -> how often it acts."""
    first, second = digits
    return Counter(left=1, right=1, tuned=1 + (second in "056"), foreign=1 + (first < "4"), judge=1)


class Chain(Workflow):
    """Left and right at once, then one after the other."""

    async def run(self, task: Task, team: Any) -> list[str]:
        shown, times = task.prompt, acts(task.data["digits"])
        both = await team.act({"left": shown, "right": shown})
        texts = [both["left"].text, both["right"].text]
        for agent in AGENTS[2:]:
            for _ in range(times[agent]):
                action = await team[agent].act(f"{shown} heard {texts[-1]}")
                texts.append(action.text)
        return texts


@hookimpl
def marl_register(registry: Any) -> None:
    registry.task("two-digits", TwoDigits)
    registry.workflow("chain", Chain)
