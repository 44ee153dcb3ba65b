"""Pydantic AI: the first agent may ask a tool for the largest of some digits; the second has the last word."""

from marl_verl_agents import openai_client, recorded_tool
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from marl_verl import Workflow, hookimpl


def largest(digits: str) -> str:
    """The largest of some digits."""
    return max(digits.split(), default="0")


class AskTool(Workflow):
    async def run(self, task, team):
        def model(agent):
            return OpenAIChatModel(agent, provider=OpenAIProvider(openai_client=openai_client(team, agent)))

        first = Agent(model("first"), tools=[recorded_tool(team["first"], largest)])
        second = Agent(model("second"))
        found = await first.run(task.prompt)
        return (await second.run(task.prompt, message_history=found.new_messages())).output


@hookimpl
def marl_register(registry):
    registry.workflow("ask-tool", AskTool)
