"""marl-verl: teams of LLM agents, trained with multi-agent reinforcement learning on top of unmodified verl."""

from marl_verl.episode import Action, Episode, Turn, Workflow
from marl_verl.errors import MarlError
from marl_verl.hookspecs import hookimpl
from marl_verl.tasks.base import Task, TaskSet
from marl_verl.team import Agent, Policy, Team

__version__ = "0.1.0"

__all__ = [
    "Action",
    "Agent",
    "Episode",
    "MarlError",
    "Policy",
    "Task",
    "TaskSet",
    "Team",
    "Turn",
    "Workflow",
    "hookimpl",
]
