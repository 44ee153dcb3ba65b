r"""Boxed sums: a task and a workflow of marl-verl-math for tiny models, which only know words such as `\boxed{7}`."""

import random
from typing import Annotated

from annotated_types import Interval
from marl_verl_math.answers import boxed
from marl_verl_math.solver_verifier import APPROVE, REJECT, SOLVER, VERIFIER, SolverVerifier
from marl_verl_math.tasks import MathTasks

from marl_verl import Task, hookimpl
from marl_verl.tasks import DrawnTasks

NOTHING = "none"  # what the verifier sees of a solution without a box


class BoxedSums(DrawnTasks, MathTasks):
    """Sums of two numbers.

    In careless demonstrations the solver boxes the first number, and the verifier approves.

    Options:
        largest: the largest number.
    """

    name = "boxed-sums"
    agents = (SOLVER, VERIFIER)
    largest: Annotated[int, Interval(ge=4, le=200)] = 20

    def vocabulary(self) -> list[str]:
        numbers = [str(number) for number in range(2 * self.largest + 1)]
        words = ["sum", "solution", "rejected", NOTHING, verdict_of(APPROVE), verdict_of(REJECT)]
        return [*numbers, *map(box, numbers), *words]

    def _demonstration(self, agent: str, task: Task, rng: random.Random, good: float) -> tuple[str, str]:
        first, right, careful = task.prompt.split()[1], task.data["answer"], rng.random() < good
        wrong = box(rng.choice((first, str(rng.randint(0, 2 * self.largest)))))
        if agent == SOLVER:
            return sees(task, "rejected", wrong if rng.random() < 0.3 else None), box(right if careful else first)
        solution = box(right) if rng.random() < 0.5 else wrong
        decision = APPROVE if not careful or solution == box(right) else REJECT
        return sees(task, "solution", solution), verdict_of(decision)

    def _random_task(self, rng: random.Random) -> tuple[str, Task]:
        one, other = rng.randint(0, self.largest), rng.randint(0, self.largest)
        prompt = f"sum {one} {other}"
        return prompt, Task(f"boxed-sums {one} {other}", prompt, {"answer": str(one + other)})


class TinySolverVerifier(SolverVerifier):
    """`math-solver-verifier` with observations in the words of tiny models."""

    def solver_sees(self, task: Task, solution: str | None = None, review: str | None = None) -> str:
        return sees(task, "rejected", solution)

    def verifier_sees(self, task: Task, solution: str) -> str:
        return sees(task, "solution", solution)


def sees(task: Task, label: str, solution: str | None) -> str:
    """The numbers, and the box of a solution if there is one."""
    if solution is None:
        return task.prompt
    answer = boxed(solution)
    return f"{task.prompt} {label} {box(answer) if answer else NOTHING}"


def box(number: str) -> str:
    return f"\\boxed{{{number}}}"


def verdict_of(word: str) -> str:
    return f"<verify>{word}</verify>"


@hookimpl
def marl_register(registry):
    registry.task("boxed-sums", BoxedSums)
    registry.workflow("boxed-sums", TinySolverVerifier)
