"""DSPy: a module of two predictors with a language model each; the second sees what the first has found."""

import os

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else LiteLLM asks the network when it is imported

import dspy
from marl_verl_agents import openai_client

from marl_verl import Workflow, hookimpl


class TwoSteps(Workflow):
    async def run(self, task, team):
        def model(agent):
            return dspy.LM(f"openai/{agent}", client=openai_client(team, agent), cache=False, num_retries=0)

        first, second = dspy.Predict("digits -> largest"), dspy.Predict("digits, largest -> answer")
        first.set_lm(model("first"))
        second.set_lm(model("second"))
        draft = await first.acall(digits=task.prompt)
        return (await second.acall(digits=task.prompt, largest=draft.largest)).answer


@hookimpl
def marl_register(registry):
    registry.workflow("two-steps", TwoSteps)
