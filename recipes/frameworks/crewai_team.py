"""CrewAI: a crew of two agents with a task each; the first may ask a tool for the largest of some digits.

`asynchronous` chooses the client: a crew runs in the event loop (`akickoff`), or in a thread (`kickoff`).
"""

import os

os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_TRACING_ENABLED": "false", "OTEL_SDK_DISABLED": "true"}

from crewai import Agent, Crew, Task
from crewai.llms.providers.openai.completion import OpenAICompletion
from crewai.tools import tool
from marl_verl_agents import openai_client, openai_client_sync, recorded_tool

from marl_verl import Workflow, hookimpl


def largest(digits: str) -> str:
    """The largest of some digits."""
    return max(digits.split(), default="0")


class InCrew(Workflow):
    asynchronous: bool = True

    async def run(self, task, team):
        def agent(name, *tools):
            model = OpenAICompletion(model=name, api_key="none")  # no key is needed in the environment
            model._client, model._async_client = openai_client_sync(team, name), openai_client(team, name)
            return Agent(role=name, goal="Find it.", backstory="None.", llm=model, tools=list(tools), max_iter=3)

        call = tool("largest")(recorded_tool(team["first"], largest, sync=not self.asynchronous))
        first, second = agent("first", call), agent("second")
        draft = Task(description=f"Largest of {task.prompt}?", expected_output="digit", agent=first)
        answer = Task(description=f"Largest of {task.prompt}?", expected_output="digit", agent=second, context=[draft])
        crew = Crew(agents=[first, second], tasks=[draft, answer], tracing=False)
        return (await crew.akickoff() if self.asynchronous else await team.in_thread(crew.kickoff)).raw


@hookimpl
def marl_register(registry):
    registry.workflow("in-crew", InCrew)
