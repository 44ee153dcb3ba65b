"""Teams of frameworks are replayable workflows: recipes/frameworks, and the page about them."""

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest
from marl_verl_testing import ScriptedPolicy, check_workflow

from marl_verl.tasks import Task

FOLDER = Path(__file__).parents[1] / "recipes" / "frameworks"
TASK = Task("t", "3 1 4 and 2 7 1", {"first": ["3", "1", "4"], "answer": "7"})


def calls(name: str, **arguments: Any) -> dict[str, Any]:
    return {"content": "", "tool_calls": [{"name": name, "arguments": arguments}]}


def fields(**values: str) -> str:
    """A reply in the format of DSPy."""
    return "\n\n".join([*(f"[[ ## {name} ## ]]\n{value}" for name, value in values.items()), "[[ ## completed ## ]]"])


CALLS_TOOL: dict[str, Any] = {"first": [calls("largest", digits="3 1 4"), "4"], "second": "7"}
TEAMS: dict[str, tuple[str, str, dict[str, Any], str]] = {  # package, workflow class, replies, answer
    "openai_agents": ("agents", "HandOff", {"first": calls("transfer_to_second"), "second": "7"}, "7"),
    "langgraph": ("langgraph", "AnswerAndJudge", {"first": ["4", "7"], "second": ["no", "yes"]}, "7"),
    "pydantic_ai": ("pydantic_ai", "AskTool", CALLS_TOOL, "7"),
    "autogen": ("autogen_agentchat", "RoundRobin", {"first": "4", "second": "7"}, "7"),
    "smolagents": ("smolagents", "InThread", CALLS_TOOL, "7"),
}
ALONE = {  # without a recipe: the tiny models do not know the prompts of these frameworks
    "agno": ("agno", "CallTool", CALLS_TOOL, "7"),
    "crewai": ("crewai", "InCrew", CALLS_TOOL, "7"),
    "dspy": ("dspy", "TwoSteps", {"first": fields(largest="4"), "second": fields(answer="7")}, "7"),
    "google_adk": ("google.adk", "InSequence", CALLS_TOOL, "7"),
    "llama_index": ("llama_index.llms.openai", "DraftAndAnswer", CALLS_TOOL, "7"),
}
BY_HAND = ("crewai", "dspy", "google_adk", "llama_index")
"""Too large, or with other versions of the packages of a run: installed by hand, in an environment of their own."""


def needs(package: str) -> None:
    """Skip where a package is missing, except in CI, where `make install` must have installed it."""
    if importlib.util.find_spec(package) is None:
        assert os.environ.get("CI") != "true", f"package {package} is not installed in CI"
        pytest.skip(f"package {package} is not installed")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"), [*((name, {}) for name in TEAMS | ALONE), ("crewai", {"asynchronous": False})]
)
def test_a_frameworks_team_is_replayable(name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    package, workflow, replies, answer = (TEAMS | ALONE)[name]
    if name in BY_HAND:
        pytest.importorskip(package, reason=f"docs/frameworks.md says how {package} is installed")
    needs(package)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("PYTHONPATH", f"{FOLDER}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.syspath_prepend(str(FOLDER))
    team = importlib.import_module(f"{name}_team")
    run = check_workflow(getattr(team, workflow)(**options), TASK, ScriptedPolicy(replies), seconds=300)
    assert run.answer == answer
    assert {act.agent for act, _ in run.turns} == {"first", "second"}
