"""The team: a task set, the workflow in which two agents solve its tasks, and a reward for each agent."""

import random
from typing import Any

from marl_verl import Episode, MarlError, Task, TaskSet, Team, Turn, Workflow
from marl_verl.tasks import Split

DIGITS = "0123456789"
NUMBERS = [f"{number:03}" for number in range(1000)]
HELD_OUT = set(random.Random("held out").sample(NUMBERS, 100))  # the same for every seed: never trained on


class Numbers(TaskSet):
    """Numbers of three digits, which only the caller sees: 900 to train on and 100 held out."""

    def generate(self, split: Split, count: int, seed: int) -> list[Task]:
        """`count` numbers of a split. MarlError if there are fewer."""
        there = [number for number in NUMBERS if (number in HELD_OUT) == (split == "test")]
        if count > len(there):
            raise MarlError(
                f"there are only {len(there)} {split} numbers, got a count of {count}: lower marl.task.{split}_size"
            )
        return [Task(f"number-{n}", " ".join(n), {"digits": list(n)}) for n in random.Random(seed).sample(there, count)]

    def score(self, task: Task, answer: Any) -> float:
        """1 for the number, digit by digit, else 0."""
        return float(str(answer).split() == task.data["digits"])

    # for the warm-up of tiny models; task sets for real models need neither method

    def vocabulary(self) -> list[str]:
        """All words of observations and answers."""
        return [*DIGITS, "number", "heard", "nothing"]

    def demonstrations(self, agent: str, count: int, seed: int, good: float) -> list[tuple[str, str]]:
        """(observation, answer) pairs, a share `good` of them right; the others repeat the first digit."""
        draw = random.Random(f"{agent} {seed}")
        seen = {"caller": "number", "writer": "heard"}[agent]
        pairs = []
        for number in draw.choices(sorted(set(NUMBERS) - HELD_OUT), k=count):
            # wrong in a way that one agent's error cannot cancel the other's
            words = number if draw.random() < good else number[0] * 3
            pairs.append((f"{seen} {' '.join(number)}", " ".join(words)))
        return pairs


class CallOut(Workflow):
    """The caller sends the number, the writer writes it down, in rounds until the two agree.

    Options:
        rounds: maximum number of rounds.
    """

    rounds: int = 2

    async def run(self, task: Task, team: Team) -> str:
        """Return the team's answer, which the task set scores: the writer's last text."""
        written = ""
        for _ in range(self.rounds):
            called = await team["caller"].act(f"number {task.prompt}")
            if len(called.text.split()) != len(task.data["digits"]):
                team.invalid(called, "not as many digits as the number has")
            wrote = await team["writer"].act(f"heard {called.text or 'nothing'}")
            written = wrote.text
            team.propose(written)  # the answer if the episode ended here; samplers that branch score it
            if written == called.text:
                break
        return written


def digits_right(task: Task, turn: Turn, episode: Episode) -> float:
    """The share of the number's digits that the turn has in the right place."""
    digits: list[str] = task.data["digits"]
    words = turn.action.text.split()
    return sum(a == b for a, b in zip(words, digits, strict=False)) / max(len(digits), len(words))
