"""Agents of other frameworks as agents of a team: clients, tools and MCP in a workflow, and a gateway for processes."""

from typing import TYPE_CHECKING

from marl_verl import lazy

if TYPE_CHECKING:
    from marl_verl_agents.clients import openai_client, openai_client_sync, transport
    from marl_verl_agents.tools import McpError, McpServer, mcp_server, recorded_tool

__all__ = ["McpError", "McpServer", "mcp_server", "openai_client", "openai_client_sync", "recorded_tool", "transport"]

__getattr__ = lazy(__name__)  # listing a package's commands imports the package
