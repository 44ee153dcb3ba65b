"""OpenAI Agents SDK: the first agent answers, or hands the conversation over to the second."""

from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner
from marl_verl_agents import openai_client

from marl_verl import Workflow, hookimpl


class HandOff(Workflow):
    async def run(self, task, team):
        second = Agent("second", model=OpenAIChatCompletionsModel("second", openai_client(team, "second")))
        first = Agent(
            "first", model=OpenAIChatCompletionsModel("first", openai_client(team, "first")), handoffs=[second]
        )
        result = await Runner.run(first, task.prompt, run_config=RunConfig(tracing_disabled=True))
        return result.final_output


@hookimpl
def marl_register(registry):
    registry.workflow("hand-off", HandOff)
