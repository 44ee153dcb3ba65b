"""smolagents, which is synchronous: each agent may call a tool once, and then answers."""

from marl_verl_agents import openai_client_sync, recorded_tool
from smolagents import LogLevel, OpenAIModel, ToolCallingAgent, tool

from marl_verl import Workflow, hookimpl


def largest(digits: str) -> str:
    """The largest of some digits.

    Args:
        digits: digits, with spaces in between.
    """
    return max(digits.split(), default="0")


PROMPTS = {  # short ones, since tiny models read 200 words at most
    "system_prompt": "",
    "planning": {"initial_plan": "", "update_plan_pre_messages": "", "update_plan_post_messages": ""},
    "managed_agent": {"task": "", "report": ""},
    "final_answer": {"pre_messages": "", "post_messages": "{{task}}"},
}


class Model(OpenAIModel):
    def __init__(self, agent, client):
        self.team_client = client
        super().__init__(agent, tool_choice="auto")

    def create_client(self):
        return self.team_client


class InThread(Workflow):
    async def run(self, task, team):
        record = recorded_tool(team["first"], largest, sync=True)

        def agent(name, tools):
            options = {"prompt_templates": PROMPTS, "max_steps": 1, "verbosity_level": LogLevel.OFF}
            return ToolCallingAgent(tools, Model(name, openai_client_sync(team, name)), **options)

        def solve():
            draft = agent("first", [tool(record)]).run(task.prompt)
            return agent("second", []).run(f"{task.prompt} {draft}")

        return str(await team.in_thread(solve))


@hookimpl
def marl_register(registry):
    registry.workflow("in-thread", InThread)
