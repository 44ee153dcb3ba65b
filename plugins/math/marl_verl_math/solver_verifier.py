r"""A solver and a verifier, who approves or rejects; the answer is in `\boxed{...}`. And their role rewards.

Source: Dr. MAS, arXiv 2602.08847, and its public code: two rounds. The wording of the prompts is our own. The authors'
code silently treats an unparseable verdict as approval; here this is an option, and the action is marked invalid.
"""

from typing import Literal

from marl_verl_datasets import clipped, verdict

from marl_verl import Episode, Task, Team, Turn, Workflow
from marl_verl.options import Positive
from marl_verl_math.answers import boxed
from marl_verl_math.tasks import right

SOLVER, VERIFIER = "solver", "verifier"
APPROVE, REJECT = "approve", "reject"


class SolverVerifier(Workflow):
    """The solver writes a solution, the verifier approves or rejects it; the last solution is not verified.

    Options:
        rounds: maximum number of solutions (1: without the verifier).
        unparseable: the verdict if the verifier's cannot be parsed; `approve` is the authors' choice. Its action is
            marked invalid in both cases.
        kept: maximum characters of a solution or review shown to the other agent; the middle of a longer one is cut.
    """

    rounds: Positive = 2
    unparseable: Literal["approve", "reject"] = "approve"
    kept: Positive = 6000

    async def run(self, task: Task, team: Team) -> str:
        seen = self.solver_sees(task)
        for number in range(1, self.rounds + 1):
            solution = await team[SOLVER].act(seen)
            if not boxed(solution.text):
                team.invalid(solution, "no boxed answer")
            team.propose(solution.text)
            if number == self.rounds:
                break
            shown = clipped(solution.text, self.kept)
            review = await team[VERIFIER].act(self.verifier_sees(task, shown))
            decision = verdict(review.text, (APPROVE, REJECT))
            if decision is None:
                team.invalid(review, "no verdict")
            if (decision or self.unparseable) == APPROVE:
                break
            seen = self.solver_sees(task, shown, clipped(review.text, self.kept))
        return solution.text

    def solver_sees(self, task: Task, solution: str | None = None, review: str | None = None) -> str:
        parts = [f"Problem:\n{task.prompt}"]
        if solution is not None:
            parts += [f"Your earlier solution:\n{solution}", f"A verifier rejected it:\n{review}"]
        parts.append("Solve the problem step by step. End with the final answer in \\boxed{}.")
        return "\n\n".join(parts)

    def verifier_sees(self, task: Task, solution: str) -> str:
        how = (
            "Check every step and the final answer. End with your verdict: <verify>approve</verify> if the solution is "
            "right, <verify>reject</verify> if anything in it is wrong."
        )
        return f"Problem:\n{task.prompt}\n\nProposed solution:\n{solution}\n\n{how}"


async def solution_right(task: Task, turn: Turn, episode: Episode) -> float:
    """Role reward `math-solution`, -0.1 to 1: 1 if this solution's boxed answer is right, else 0; -0.1 without one."""
    answer = boxed(turn.action.text)
    return await right(task, answer) if answer else -0.1


async def verdict_right(task: Task, turn: Turn, episode: Episode) -> float:
    """Role reward `math-verdict`, -0.1 to 1: 1 if a right solution is approved or a wrong one rejected, else 0; -0.1
    without a verdict."""
    decision = verdict(turn.action.text, (APPROVE, REJECT))
    if decision is None:
        return -0.1
    reviewed = next(earlier for earlier in episode.turns if (earlier.agent, earlier.turn) == (SOLVER, turn.turn))
    return float((decision == APPROVE) == bool(await right(task, boxed(reviewed.action.text))))
