r"""Mathematics as in the paper: a solver and a verifier, up to two rounds; the answer is in `\boxed{...}`.

Task rows have the problem as `prompt` and the final answer as `data.answer`; `marl_verl_dr_mas.convert` makes such rows
from public data sets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from marl_verl import MarlError, Task, TaskSet, Workflow
from marl_verl_dr_mas.math_answers import boxed, same
from marl_verl_dr_mas.verdict import clipped, verdict

if TYPE_CHECKING:
    from marl_verl.episode import Team

SOLVER, VERIFIER = "solver", "verifier"
APPROVE, REJECT = "approve", "reject"


class MathTasks(TaskSet):
    """Problems with one final answer, from a file."""

    def score(self, task: Task, answer: Any) -> float:
        r"""1 when the last boxed answer in a text is the right one, else 0.

        Raises:
            MarlError: the answer is not text, or the task's row has no `data.answer`.
        """
        truth = task.data.get("answer")
        if not isinstance(truth, str):
            raise MarlError(f"task '{task.id}' has no text 'data.answer' to compare with, it has {truth!r:.60}")
        found = boxed(_text(answer))
        return float(found is not None and same(found, truth))

    def public_score(self, task: Task, answer: Any) -> float:
        """1 when a text has a boxed answer, right or not, else 0. MarlError unless it is a text."""
        return float(bool(boxed(_text(answer))))


def _text(answer: Any) -> str:
    if not isinstance(answer, str):
        raise MarlError(f"dr-mas-math scores a text, got {type(answer).__name__}")
    return answer


class MathSolverVerifier(Workflow):
    """The solver writes a solution, the verifier approves or rejects it; the last solution is not verified.

    Options:
        rounds: maximum number of solutions (1: without the verifier).
        unparseable: the verdict if the verifier's cannot be parsed; `approve` is the authors' choice. Its action is
            marked invalid in both cases.
        kept: maximum characters of a solution or review shown to the other agent; the middle of a longer one is cut.
    """

    rounds: int = 2
    unparseable: Literal["approve", "reject"] = "approve"
    kept: int = 6000

    def __post_init__(self) -> None:
        for name, value in (("rounds", self.rounds), ("kept", self.kept)):
            if value < 1:
                raise MarlError(f"{name} must be 1 or more, got {value}")

    async def run(self, task: Task, team: Team) -> str:
        """Return the solver's last solution."""
        seen = solver_sees(task)
        for number in range(1, self.rounds + 1):
            solution = await team[SOLVER].act(seen)
            if not boxed(solution.text):
                team.invalid(solution, "no boxed answer")
            team.propose(solution.text)
            if number == self.rounds:
                break
            shown = clipped(solution.text, self.kept)
            review = await team[VERIFIER].act(verifier_sees(task, shown))
            decision = verdict(review.text, (APPROVE, REJECT))
            if decision is None:
                team.invalid(review, "no verdict")
            if (decision or self.unparseable) == APPROVE:
                break
            seen = solver_sees(task, shown, clipped(review.text, self.kept))
        return solution.text


def solver_sees(task: Task, solution: str | None = None, review: str | None = None) -> str:
    r"""The problem; after a rejection also the solution and the review."""
    parts = [f"Problem:\n{task.prompt}"]
    if solution is not None:
        parts += [f"Your earlier solution:\n{solution}", f"A verifier rejected it:\n{review}"]
    parts.append("Solve the problem step by step. End with the final answer in \\boxed{}.")
    return "\n\n".join(parts)


def verifier_sees(task: Task, solution: str) -> str:
    """The problem, the solution, and the form of a verdict."""
    how = (
        "Check every step and the final answer. End with your verdict: <verify>approve</verify> if the solution is "
        "right, <verify>reject</verify> if anything in it is wrong."
    )
    return f"Problem:\n{task.prompt}\n\nProposed solution:\n{solution}\n\n{how}"
