"""The gateway of marl-verl-agents under its name before 0.1 was split; `marl_verl_agents.gateway` is the one to use."""

from marl_verl_agents.gateway import Completed, Endpoint, Endpoints, ExternalWorkflow, ProcessFailed, process

__all__ = ["Completed", "Endpoint", "Endpoints", "ExternalWorkflow", "ProcessFailed", "process"]
