"""LlamaIndex: the first agent may ask a tool for the largest of some digits; the second has the last word."""

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai import OpenAI
from marl_verl_agents import openai_client, recorded_tool

from marl_verl import Workflow, hookimpl


def largest(digits: str) -> str:
    """The largest of some digits."""
    return max(digits.split(), default="0")


class DraftAndAnswer(Workflow):
    async def run(self, task, team):
        def agent(name, *tools):
            # the model's name decides what the client sends; its own temperature would be 0.1
            client = openai_client(team, name)
            model = OpenAI("gpt-4o", api_key="none", temperature=1.0, max_retries=0, async_openai_client=client)
            return FunctionAgent(name=name, llm=model, tools=list(tools))

        tool = FunctionTool.from_defaults(async_fn=recorded_tool(team["first"], largest))
        draft = await agent("first", tool).run(task.prompt)
        return str(await agent("second").run(f"{task.prompt} {draft}"))


@hookimpl
def marl_register(registry):
    registry.workflow("draft-and-answer", DraftAndAnswer)
