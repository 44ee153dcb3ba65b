"""The team of gsm8k.sh: a solver drafts, a verifier checks the draft and writes the solution that is scored."""

from typing import Any

from marl_verl import Task, Workflow, hookimpl


class SolverVerifier(Workflow):
    async def run(self, task: Task, team: Any) -> str:
        draft = await team["solver"].act(task.prompt)
        seen = f"{task.prompt}\n\nA draft of a solution:\n{draft.text}\n\nCheck it, and write the right solution."
        return str((await team["verifier"].act(seen)).text)


@hookimpl
def marl_register(registry: Any) -> None:
    registry.workflow("solver-verifier", SolverVerifier)
