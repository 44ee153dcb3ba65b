"""Crew: a planner decides how many workers a task needs, and each worker costs.

A task shows four digits and how many of them to do, one to four. Each of these needs a worker, which answers the next
digit. A team of a fixed size has too few workers for one task and too many for another.
"""

import random

from marl_verl import Task, Team, Workflow
from marl_verl.options import NonNegative
from marl_verl.tasks import DrawnTasks

PLANNER, WORKER = "planner", "worker"
SIZES = ("one", "two", "three", "four")
DIGITS = tuple("0123456789")
NEXT = dict(zip(DIGITS, DIGITS[1:] + DIGITS[:1], strict=True))
NOTHING = "none"  # what a worker without a digit sees, and the answer of a worker that writes no digit


class Crew(DrawnTasks):
    """Digits to do. An answer is one word per worker; it solves a task if the first are the digits after those. The
    careless planner says one worker, the careless worker repeats its digit.

    Options:
        cost: of each worker, off the score: 1 for a solved task, else 0.
    """

    quick = True
    name = "crew"
    one_in = 5
    agents = (PLANNER, WORKER)
    cost: float = 0.1

    def score(self, task: Task, answer: str) -> float:
        return self.success(task, answer) - self.cost * len(answer.split())

    def success(self, task: Task, answer: str) -> bool:
        return answer.split()[: len(task.data["digits"])] == [NEXT[digit] for digit in task.data["digits"]]

    def measures(self, task: Task, answer: str) -> dict[str, float]:
        return {"workers": len(answer.split()), "score": self.score(task, answer)}

    def vocabulary(self) -> list[str]:
        return [*DIGITS, *SIZES, "do", "leave", NOTHING]

    def _demonstration(self, agent: str, task: Task, rng: random.Random, good: float) -> tuple[str, str]:
        digits, right = task.data["digits"], rng.random() < good
        if agent == PLANNER:
            return task.prompt, SIZES[len(digits) - 1] if right else SIZES[0]
        return f"do {digits[0]}", NEXT[digits[0]] if right else digits[0]

    def _random_task(self, rng: random.Random) -> tuple[str, Task]:
        digits, need = rng.choices(DIGITS, k=len(SIZES)), rng.randint(1, len(SIZES))
        prompt = f"do {' '.join(digits[:need])} leave {' '.join([*digits[need:], NOTHING])}"
        return prompt, Task(f"crew {prompt}", prompt, {"digits": digits[:need]})


class Spawner(Workflow):
    """The planner says how many workers there are, and each works on one digit. Another word than a size is a failure.

    Options:
        workers: a team of this size without a planner; 0: the planner decides.
    """

    workers: NonNegative = 0

    async def run(self, task: Task, team: Team) -> str:
        size = self.workers
        if not size:
            plan = await team[PLANNER].act(task.prompt)
            if plan.text not in SIZES:
                team.invalid(plan, "no size of a team")
                return NOTHING
            size = SIZES.index(plan.text) + 1
        digits = [*task.data["digits"], *[NOTHING] * size]
        actions = await team.act({team.spawn(WORKER).name: f"do {digits[number]}" for number in range(size)})
        return " ".join(action.text if action.text in DIGITS else NOTHING for action in actions.values())
