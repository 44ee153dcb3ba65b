"""agno: the first agent may ask a tool for the largest of some digits; the second has the last word."""

from agno.agent import Agent
from agno.models.openai import OpenAIChat
from marl_verl_agents import openai_client, recorded_tool

from marl_verl import Workflow, hookimpl


def largest(digits: str) -> str:
    """The largest of some digits."""
    return max(digits.split(), default="0")


class CallTool(Workflow):
    async def run(self, task, team):
        def agent(name, **options):
            model = OpenAIChat(id=name, async_client=openai_client(team, name))
            return Agent(model=model, telemetry=False, **options)

        draft = await agent("first", tools=[recorded_tool(team["first"], largest)]).arun(task.prompt)
        return (await agent("second").arun(f"{task.prompt} {draft.content}")).content


@hookimpl
def marl_register(registry):
    registry.workflow("call-tool", CallTool)
