"""Requests of clients that are longer than the context of a policy: refused before sampling, and recorded.

The refusal is the record of a call of the team, found by agent and content of the request, so that a replay refuses the
same requests, also where no policy is present, and a shortened request is sampled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from marl_verl.episode.calls import as_json
from marl_verl.episode.journal import CallRecord, Journal, Raised
from marl_verl.episode.messages import Observation

FUNCTION = f"{__name__}:check_length"

TooLong = Callable[[str, Observation, Sequence[Any] | None], str | None]
"""(agent, observation, tools) -> why they are too long for its policy, or None."""


class ContextLengthExceeded(Exception):
    """A request of a client is too long for the policy of its agent."""


def refusal(
    journal: Journal, too_long: TooLong | None, agent: str, observation: Observation, tools: Sequence[Any] | None
) -> CallRecord | None:
    """The record of a refused request, of the journal or a new one; None if it is not too long."""
    if journal.has_calls_of(FUNCTION):
        record = journal.call(FUNCTION, _content(agent, observation, tools), 0)
        if record is not None:
            return record
    why = None if too_long is None else too_long(agent, observation, tools)
    if why is None:
        return None
    return CallRecord(FUNCTION, _content(agent, observation, tools), raised=Raised.of(ContextLengthExceeded(why)))


def _content(agent: str, observation: Observation, tools: Sequence[Any] | None) -> str:
    """Agent and digest of a request, as arguments of a call."""
    text = json.dumps([observation, tools], sort_keys=True)
    return as_json([agent, hashlib.blake2b(text.encode(), digest_size=8).hexdigest()])
