"""Google ADK: a sequence of two agents; the first may ask a tool for the largest of some digits."""

import os

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else LiteLLM asks the network when it is imported

from google.adk.agents import LlmAgent, SequentialAgent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai.types import Content, Part
from marl_verl_agents import openai_client, recorded_tool

from marl_verl import Workflow, hookimpl


def largest(digits: str) -> str:
    """The largest of some digits."""
    return max(digits.split(), default="0")


class InSequence(Workflow):
    async def run(self, task, team):
        def agent(name, **options):
            model = LiteLlm(model=f"openai/{name}", client=openai_client(team, name))
            return LlmAgent(name=name, model=model, **options)

        both = [agent("first", tools=[recorded_tool(team["first"], largest)]), agent("second", include_contents="none")]
        runner = InMemoryRunner(SequentialAgent(name="team", sub_agents=both))
        session = await runner.session_service.create_session(app_name=runner.app_name, user_id="user")
        question, answer = Content(role="user", parts=[Part(text=task.prompt)]), ""
        async for event in runner.run_async(user_id="user", session_id=session.id, new_message=question):
            if event.is_final_response() and event.content:
                answer = event.content.parts[0].text
        return answer


@hookimpl
def marl_register(registry):
    registry.workflow("in-sequence", InSequence)
