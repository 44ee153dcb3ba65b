"""Agents that run by themselves: URLs of OpenAI's and Anthropic's APIs whose requests are acts of an episode."""

from marl_verl_agents.gateway.external import Completed, ExternalWorkflow, ProcessFailed, process
from marl_verl_agents.gateway.server import Endpoint, Endpoints

__all__ = ["Completed", "Endpoint", "Endpoints", "ExternalWorkflow", "ProcessFailed", "process"]
