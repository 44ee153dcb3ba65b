"""AutoGen: both agents speak in turn; the answer is the last message."""

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient
from httpx import AsyncClient
from marl_verl_agents import transport

from marl_verl import Workflow, hookimpl


class RoundRobin(Workflow):
    messages: int = 3  # with the question

    async def run(self, task, team):
        def agent(name):
            info = {"vision": False, "function_calling": True, "json_output": False, "family": "unknown"}
            info["structured_output"] = False
            http = AsyncClient(transport=transport(team, name))
            client = OpenAIChatCompletionClient(model=name, api_key="none", http_client=http, model_info=info)
            return AssistantAgent(name, client, system_message=None)

        chat = RoundRobinGroupChat(
            [agent("first"), agent("second")], termination_condition=MaxMessageTermination(self.messages)
        )
        result = await chat.run(task=task.prompt)
        return result.messages[-1].content


@hookimpl
def marl_register(registry):
    registry.workflow("round-robin", RoundRobin)
