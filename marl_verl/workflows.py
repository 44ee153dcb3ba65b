"""The one-agent team for any task."""

from typing import Any

from marl_verl.episode import Workflow
from marl_verl.errors import MarlError
from marl_verl.tasks.task import Task
from marl_verl.tasks.verl_rows import observation


class Single(Workflow):
    """A team of one agent: it sees the task's prompt or messages, and its text is the answer."""

    async def run(self, task: Task, team: Any) -> str:
        if len(team.agents) != 1:
            raise MarlError(f"workflow 'single' is for one agent, not {', '.join(team.agents)}: set marl.workflow.name")
        action = await team[team.agents[0]].act(observation(task))
        return str(action.text)
