"""Inventory: the holder sees a list of digits and sends a message; the asker sees an index and the message, and answers
with one digit. A shorter task than Plan-Path, for tests."""

import asyncio
import random
from typing import Annotated, Any

from annotated_types import Interval

from marl_verl.episode import Workflow
from marl_verl.tasks import DrawnTasks, Task, TaskSet

HOLDER, ASKER = "holder", "asker"
DIGITS = tuple("0123456789")
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth")
NOTHING = "none"  # the asker's message if the holder did not send as many digits as it has


class Inventory(DrawnTasks):
    """Tasks on random lists of digits. The careless holder repeats the first digit, the careless asker answers it.

    Options:
        length: digits in a list (2 to 9).
    """

    quick = True
    name = "inventory"
    agents = (HOLDER, ASKER)
    length: Annotated[int, Interval(ge=2, le=9)] = 4

    def score(self, task: Task, answer: Any) -> float:
        return float(answer.strip() == task.data["digits"][task.data["index"] - 1])

    def public_score(self, task: Task, answer: Any) -> float:
        """1 if the answer is one digit, correct or not, else 0: needs no knowledge of the list."""
        return float(answer.strip() in DIGITS)

    def vocabulary(self) -> list[str]:
        return [*DIGITS, *ORDINALS[: self.length], "digits", "index", "message", NOTHING]

    def _demonstration(self, agent: str, task: Task, rng: random.Random, good: float) -> tuple[str, str]:
        digits, index, right = task.data["digits"], task.data["index"], rng.random() < good
        if agent == HOLDER:
            return holder_sees(task), " ".join(digits if right else digits[:1] * self.length)
        return asker_sees(task, " ".join(digits)), digits[index - 1] if right else digits[0]

    def _random_task(self, rng: random.Random) -> tuple[str, Task]:
        digits = rng.choices(DIGITS, k=self.length)
        index = rng.randint(1, self.length)
        words = " ".join(digits)
        prompt = f"digits {words} index {ORDINALS[index - 1]}"
        return words, Task(f"inventory {prompt}", prompt, {"digits": digits, "index": index})


def holder_sees(task: Task) -> str:
    return f"digits {' '.join(task.data['digits'])}"


def asker_sees(task: Task, message: str) -> str:
    """The asker's observation: the holder's message and the index, as an ordinal to distinguish it from digits."""
    return f"message {message} index {ORDINALS[task.data['index'] - 1]}"


TEAMS = ("red", "blue")


class InventoryMatch(Inventory):
    """Tasks of `inventory` for two teams: agents `red-holder` and `red-asker` of side `red`, and so for `blue`.

    A side scores 1 if only its team answers right, -1 if only the other does, else 0.
    """

    public_score = TaskSet.public_score  # an answer of two teams has none
    sides = TEAMS

    def demonstrations(self, agent: str, count: int, seed: int, good: float) -> list[tuple[str, str]]:
        """Those of the agent's role in `inventory`; the same for both teams."""
        return super().demonstrations(agent.partition("-")[2], count, seed, good)

    def score(self, task: Task, answer: Any) -> Any:
        red, blue = (Inventory.score(self, task, answer["answers"][side]) for side in TEAMS)
        return dict(zip(TEAMS, (red - blue, blue - red), strict=True))

    def success(self, task: Task, answer: Any) -> bool:
        """Whether both teams answer right: what scores that add up to 0 cannot show."""
        return all(Inventory.score(self, task, answer["answers"][side]) >= 1 for side in TEAMS)


class HolderAsker(Workflow):
    """The holder sends its digits; the asker answers."""

    async def run(self, task: Task, team: Any) -> str:
        return await _hold_and_ask(task, team, HOLDER, ASKER)


async def _hold_and_ask(task: Task, team: Any, holder: str, asker: str) -> str:
    held = await team[holder].act(holder_sees(task))
    sent = held.text.split()
    whole = len(sent) == len(task.data["digits"]) and all(word in DIGITS for word in sent)
    if not whole:
        team.invalid(held, "must be as many digits as the holder has")
    action = await team[asker].act(asker_sees(task, " ".join(sent) if whole else NOTHING))
    if action.text.strip() not in DIGITS:
        team.invalid(action, "not a digit")
    return str(action.text)


class InventoryMatchGame(Workflow):
    """Both teams play `inventory` on the same task at the same time, without seeing each other's messages."""

    async def run(self, task: Task, team: Any) -> dict[str, Any]:
        games = (_hold_and_ask(task, team, f"{side}-{HOLDER}", f"{side}-{ASKER}") for side in TEAMS)
        answers = dict(zip(TEAMS, await asyncio.gather(*games), strict=True))
        return {"text": ", ".join(f"{side} {answer}" for side, answer in answers.items()), "answers": answers}
