"""A plugin file: the teams of all frameworks in one run, each on its own tasks."""

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any
from zlib import crc32

from marl_verl_agents import openai_client

from marl_verl import Workflow, hookimpl

FOLDER = Path(os.environ.get("FRAMEWORKS_FOLDER", ""))  # recipes/frameworks: this file is copied into the run's folder
TEAMS = {
    "openai_agents_team": "HandOff",
    "langgraph_team": "AnswerAndJudge",
    "pydantic_ai_team": "AskTool",
    "autogen_team": "RoundRobin",
    "smolagents_team": "InThread",
}
TOOLS = ("transfer_to_second", "largest", "")


def framework(task_id: str) -> str:
    """The team that works on a task."""
    return list(TEAMS)[crc32(task_id.encode()) % len(TEAMS)]


def load(name: str) -> Any:
    if name not in sys.modules:
        spec: Any = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


class EveryFramework(Workflow):
    async def run(self, task: Any, team: Any) -> Any:
        name = framework(task.id)
        return await getattr(load(name), TEAMS[name])().run(task, team)


class Formats(Workflow):
    """What a request may ask: a JSON schema with several choices and streamed, calls of tools; and one too long."""

    async def run(self, task: Any, team: Any) -> Any:
        from openai import BadRequestError

        digit = {"type": "object", "properties": {"digit": {"enum": list(range(10))}}, "required": ["digit"]}
        digit["additionalProperties"] = False
        asked: Any = {"model": "first", "messages": [{"role": "user", "content": task.prompt}]}
        asked["response_format"] = {"type": "json_schema", "json_schema": {"name": "digit", "schema": digit}}
        create = openai_client(team, "first").chat.completions.create
        try:
            await create(**asked | {"messages": asked["messages"] * 100})
        except BadRequestError as error:
            refused = error.code
        both = await create(**asked, n=2)
        parts = [chunk.choices[0].delta.content or "" async for chunk in await create(**asked, stream=True)]
        tool = {"type": "function", "function": {"name": "largest", "parameters": digit}}
        await team["second"].act(task.prompt, tools=[tool], tool_choice="required")
        named = {"type": "function", "function": {"name": "largest"}}
        await team["second"].act(task.prompt, "named", tools=[tool], tool_choice=named)
        return json.dumps([refused, [choice.message.content for choice in both.choices], "".join(parts)])


def mixed() -> type:
    """The task of the recipes, with demonstrations of every tool."""
    digits = load("digits").Digits

    class MixedDigits(digits):  # type: ignore[misc, valid-type]
        quick = True  # a process of its own could not import it

        def vocabulary(self) -> list[str]:
            words = [word for tool in TOOLS for word in digits(tool=tool).vocabulary()]
            return list(dict.fromkeys(words))

        def demonstrations(self, agent: str, count: int, seed: int, good: float) -> list[tuple[str, str]]:
            parts = [digits(tool=tool).demonstrations(agent, count, seed, good) for tool in TOOLS]
            return [parts[number % len(parts)][number] for number in range(count)]

    return MixedDigits


@hookimpl
def marl_register(registry: Any) -> None:
    registry.workflow("every-framework", EveryFramework)
    registry.workflow("formats", Formats)
    if FOLDER.name:
        registry.task("mixed-digits", mixed())
