"""Agents of other frameworks as agents of a team: clients, tools and MCP in a workflow, and a gateway for processes."""

from marl_verl_agents.clients import openai_client, openai_client_sync, transport
from marl_verl_agents.tools import McpError, McpServer, mcp_server, recorded_tool

__version__ = "0.1.0"
__all__ = ["McpError", "McpServer", "mcp_server", "openai_client", "openai_client_sync", "recorded_tool", "transport"]
