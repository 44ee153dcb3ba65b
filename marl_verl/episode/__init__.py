"""Workflows and the replay engine that runs them against a journal."""

from marl_verl.episode.engine import Run, replay
from marl_verl.episode.errors import ReplayMismatch, TokenBudgetExceeded, WorkflowError
from marl_verl.episode.journal import ActRecord, CallError, Episode, Journal
from marl_verl.episode.messages import Message
from marl_verl.episode.turn import JOIN, Act, Action, Turn
from marl_verl.episode.workflow import Member, Team, Workflow

__all__ = ["Act", "ActRecord", "Action", "CallError", "Episode", "JOIN", "Journal", "Member", "Message"]
__all__ += ["ReplayMismatch", "Run", "Team", "TokenBudgetExceeded", "Turn", "Workflow", "WorkflowError", "replay"]
