"""Workflows and the replay engine that runs them against a journal."""

from marl_verl.episode.calls import perform
from marl_verl.episode.engine import Run, replay
from marl_verl.episode.errors import (
    Limits,
    Reason,
    ReplayMismatch,
    TokenBudgetExceeded,
    UnknownAgentError,
    WorkflowError,
)
from marl_verl.episode.journal import ActRecord, CallError, CallRecord, Episode, Journal, JournalError
from marl_verl.episode.messages import Message, Observation
from marl_verl.episode.turn import JOIN, Act, Action, Turn
from marl_verl.episode.workflow import Member, Team, Workflow

__all__ = [
    "Act",
    "ActRecord",
    "Action",
    "CallError",
    "CallRecord",
    "Episode",
    "JOIN",
    "Journal",
    "JournalError",
    "Limits",
    "Member",
    "Message",
    "Observation",
    "TokenBudgetExceeded",
    "Reason",
    "ReplayMismatch",
    "Run",
    "Team",
    "Turn",
    "UnknownAgentError",
    "Workflow",
    "WorkflowError",
    "perform",
    "replay",
]
