"""Workflows and the replay engine that runs them against a journal."""

from marl_verl.episode.engine import Run
from marl_verl.episode.engine import replay as replay
from marl_verl.episode.errors import ReplayMismatch as ReplayMismatch
from marl_verl.episode.errors import TokenBudgetExceeded, WorkflowError
from marl_verl.episode.journal import ActRecord as ActRecord
from marl_verl.episode.journal import CallError, Episode, Journal
from marl_verl.episode.turn import Act, Action, Turn
from marl_verl.episode.workflow import Member as Member
from marl_verl.episode.workflow import Team, Workflow

__all__ = ["Act", "Action", "CallError", "Episode", "Journal", "Run", "Team", "TokenBudgetExceeded", "Turn"]
__all__ += ["Workflow", "WorkflowError"]
