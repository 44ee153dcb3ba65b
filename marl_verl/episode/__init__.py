"""Workflows, and the engine that runs them against a journal."""

from marl_verl.episode.calls import perform
from marl_verl.episode.engine import Run, replay
from marl_verl.episode.journal import ActRecord, CallRecord, Journal, JournalError
from marl_verl.episode.limits import Limits, Reason
from marl_verl.episode.row import JOIN
from marl_verl.episode.turn import Act, Action, Episode, Message, Observation, Turn
from marl_verl.episode.workflow import (
    LiveTeam,
    Member,
    OverBudget,
    ReplayMismatch,
    Stuck,
    UnknownAgent,
    Workflow,
    WorkflowError,
)

__all__ = [
    "Act",
    "ActRecord",
    "Action",
    "CallRecord",
    "Episode",
    "JOIN",
    "Journal",
    "JournalError",
    "Limits",
    "LiveTeam",
    "Member",
    "Message",
    "Observation",
    "OverBudget",
    "Reason",
    "ReplayMismatch",
    "Run",
    "Stuck",
    "Turn",
    "UnknownAgent",
    "Workflow",
    "WorkflowError",
    "perform",
    "replay",
]
