"""How a policy is asked for an action, whoever serves it: what its client has, and the seed of a request."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from marl_verl.episode import Action, Message
from marl_verl.errors import MarlError


class ObservationTooLong(MarlError):
    """An observation that does not fit the policy's prompt limit. The episode fails, nothing is cut off unseen."""


class Client(Protocol):
    """A policy as the rollout worker sees it."""

    @property
    def sampling(self) -> Mapping[str, Any]:
        """`temperature`, `top_p`, `top_k` and what else its servers take, where an agent does not say otherwise."""

    async def answer(self, messages: Sequence[Message], sampling: Mapping[str, Any], request_id: str) -> Action:
        """Sample one action.

        Args:
            messages: the whole conversation, instructions first.
            sampling: `temperature`, `top_p`, `top_k` (-1: all tokens), `max_tokens` (None: the policy's own limit),
                `seed`; other keys are for the servers of this run.
            request_id: the same for all requests of an episode.

        Raises:
            ObservationTooLong: the conversation is longer than the policy takes.
            MarlError: the servers gave no action.
        """


def request_seed(*identity: Any) -> int:
    """A seed in [0, 2^31) from (run seed, step, task, session, agent, slot, candidate): the same in every such run."""
    digest = hashlib.blake2b(json.dumps(identity, default=str).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % 2**31
