"""Generate and refine: an attempt, feedback of public tests, and refinements, as in MARS2.

The observation of a refinement has the problem, the attempt and its feedback. (The authors' released
prompt for refining has the attempt and the feedback only.) An attempt that passes the public tests ends the workflow.

The agents take turns in the order of the team. A search sampler, such as MARS2's `tree-search`, may decide who acts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from marl_verl import Task, Workflow
from marl_verl.episode import Team


class Feedback(NamedTuple):
    """Feedback of public tests on an attempt: whether all pass, a text for the agent that refines, and why the attempt
    could not be tested (None if it could)."""

    passed: bool
    text: str
    invalid: str | None = None


class GenerateAndRefine(Workflow):
    """An attempt and up to `rounds` refinements. The answer is the last attempt: a node's reward is its own.

    Options:
        rounds: maximum number of refinements; the depth of the tree is one more.
    """

    rounds: int = 3

    async def run(self, task: Task, team: Team) -> str:
        """The last attempt, as the task set scores it."""
        answer, seen = "", self.first(task)
        for turn in range(self.rounds + 1):
            action = await team[team.agents[turn % len(team.agents)]].act(seen)
            answer = self.answer_of(action.text)
            team.propose(answer)
            feedback = await self.feedback(task, answer, team)
            if feedback.invalid is not None:
                team.invalid(action, feedback.invalid)
            if feedback.passed:
                break
            seen = self.again(task, answer, feedback)
        return answer

    def first(self, task: Task) -> Any:
        """Observation of the first attempt."""
        return task.prompt

    def again(self, task: Task, answer: str, feedback: Feedback) -> Any:
        """Observation of a refinement: the problem, the attempt, its feedback."""
        raise NotImplementedError(f"{type(self).__name__} has no again(task, answer, feedback)")

    def answer_of(self, text: str) -> str:
        """The answer in an agent's text."""
        return text

    async def feedback(self, task: Task, answer: str, team: Team) -> Feedback:
        """Feedback of the public tests."""
        raise NotImplementedError(f"{type(self).__name__} has no `async def feedback(self, task, answer, team)`")
