"""Tools of frameworks: recorded functions, MCP servers and sandboxed Python."""

import inspect
import sys
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from marl_verl_agents import recorded_tool
from marl_verl_agents.tools import McpError
from pydantic import BaseModel

from marl_verl.episode import WorkflowError
from plugins.agents.tests.test_openai_clients import answers

RAN: list[Any] = []
SERVER = """
import os, sys
from mcp.server import MCPServer

server = MCPServer("sums")

@server.tool()
def add(a: int, b: int = 1) -> int:
    "Add two numbers."
    with open(sys.argv[1], "a") as log:
        log.write(f"{a} {b}\\n")
    if a < 0:
        raise ValueError("negative")
    return a + b

server.run()
"""


class Point(BaseModel):
    x: int


def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    RAN.append((a, b))
    if a < 0:
        raise ValueError("negative")
    return a + b


async def shift(point: Point, *, by: int) -> int:
    RAN.append(point)
    return point.x + by


def test_a_tool_is_the_function_and_its_calls_are_recorded() -> None:
    async def do(team: Any) -> Any:
        await team["solver"].act("q")
        tool, own = recorded_tool(team, add), recorded_tool(team["solver"], shift)
        assert (tool.__name__, tool.__doc__, inspect.signature(tool)) == ("add", add.__doc__, inspect.signature(add))
        assert get_type_hints(tool) == get_type_hints(add)
        assert inspect.iscoroutinefunction(tool)
        found = [await tool(1), await tool(b=2, a=1), await own(Point(x=3), by=2)]
        for wrong in ({"a": -1}, {"c": 1}):
            with pytest.raises((ValueError, TypeError)):
                await tool(**wrong)
        return found

    RAN.clear()
    first = answers(do)
    assert first.answer == [2, 3, 5]
    assert len(RAN) == 4  # each call once: the replay made none
    calls = first.journal.calls()
    assert [(call.agent, call.function, call.arguments) for call in calls] == [
        (None, "plugins.agents.tests.test_tools:add", '[{"a": 1, "b": 1}]'),
        (None, "plugins.agents.tests.test_tools:add", '[{"a": 1, "b": 2}]'),
        ("solver", "plugins.agents.tests.test_tools:shift", '[{"by": 2, "point": {"x": 3}}]'),
        (None, "plugins.agents.tests.test_tools:add", '[{"a": -1, "b": 1}]'),
        (None, "plugins.agents.tests.test_tools:add", '[{"c": 1}]'),
    ]
    assert [call.raised is not None for call in calls] == [False, False, False, True, True]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    pytest.importorskip("mcp", reason="package mcp is not installed")
    (tmp_path / "server.py").write_text(SERVER)
    return tmp_path / "server.py"


def uses(server: Any) -> Any:
    async def do(team: Any) -> Any:
        async with team["solver"].mcp(server) as tools:
            listed = await tools.tools()
            await team["solver"].act("q", tools=listed)
            found = [listed[0]["function"]["name"], await tools.call("add", {"a": 2, "b": 3})]
            try:
                await tools.call("add", {"a": -1})
            except McpError as error:
                found.append("Error executing tool add" in str(error))
            return found

    return do


@pytest.mark.slow
def test_an_mcp_server_as_a_process_is_recorded(script: Path) -> None:
    log = script.parent / "log"
    first = answers(uses([sys.executable, str(script), str(log)]))
    assert first.answer == ["add", "5", True]
    assert log.read_text() == "2 3\n-1 1\n"  # once: the replay started no server
    tools = first.turns[0][0].parameters["tools"][0]["function"]  # type: ignore[index]
    assert (tools["description"], sorted(tools["parameters"]["properties"])) == ("Add two numbers.", ["a", "b"])
    assert [call.raised is not None for call in first.journal.calls()] == [False, False, True]
    assert [call.agent for call in first.journal.calls()] == [None, "solver", "solver"]  # the list of tools is no use
    with pytest.raises(WorkflowError, match=rf"MCP server '{sys.executable}' cannot be reached: .*Connection closed"):
        answers(uses([sys.executable, str(script.with_name("none.py"))]))
    with pytest.raises(WorkflowError, match="it took longer than 1 s"):  # its block ends, too
        answers(uses([sys.executable, "-c", "import time; time.sleep(99)"]), seconds=1)
