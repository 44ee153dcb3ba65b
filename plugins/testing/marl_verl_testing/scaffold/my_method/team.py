"""The team: a task set, the workflow in which two agents solve its tasks, and a reward for each agent."""

import random

from marl_verl import Episode, Task, Team, Turn, Workflow
from marl_verl.tasks import DrawnTasks

DIGITS = "0123456789"


class Numbers(DrawnTasks):
    """Numbers of three digits, which only the caller sees; one in ten is held out, for every seed."""

    name = "my-method-numbers"
    agents = ("caller", "writer")

    def score(self, task: Task, answer: object) -> float:
        """1 for the number, digit by digit, else 0."""
        return float(str(answer).split() == task.data["digits"])

    def vocabulary(self) -> list[str]:
        """All words of observations and answers, for tiny models."""
        return [*DIGITS, "number", "heard", "nothing"]

    def _demonstration(self, agent: str, task: Task, rng: random.Random, good: float) -> tuple[str, str]:
        """What an agent sees and answers, for the warm-up of tiny models; a careless one repeats the first digit."""
        # wrong in a way that one agent's error cannot cancel the other's
        digits = task.data["digits"] if rng.random() < good else task.data["digits"][:1] * 3
        return f"{'number' if agent == 'caller' else 'heard'} {task.prompt}", " ".join(digits)

    def _random_task(self, rng: random.Random) -> tuple[str, Task]:
        digits = rng.choices(DIGITS, k=3)
        shown = " ".join(digits)
        return shown, Task(f"number {shown}", shown, {"digits": digits})  # the first text decides about the split


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
