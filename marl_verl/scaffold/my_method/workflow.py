"""The workflow: who acts when, and what each sees. Plain Python, which must do the same thing when it is run again."""

from __future__ import annotations

from typing import Any

from marl_verl import Task, Workflow


class CallOut(Workflow):
    """The caller calls the number out, the writer writes down what it hears; until the two agree.

    Options:
        rounds: at most.
    """

    rounds: int = 2

    async def run(self, task: Task, team: Any) -> str:
        """What the writer wrote last: the team's answer, which the task scores."""
        written = ""
        for _ in range(self.rounds):
            called = await team["caller"].act(f"number {task.prompt}")
            if len(called.text.split()) != len(task.data["digits"]):
                team.invalid(called, "not as many digits as the number has")
            wrote = await team["writer"].act(f"heard {called.text or 'nothing'}")
            written = wrote.text
            team.propose(written)  # the answer, should the episode end here: samplers that branch score it
            if written == called.text:
                break
        return written
