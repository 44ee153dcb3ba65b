"""Observations as what they add to an earlier observation, so that a stored conversation is linear in its new text.

    observation = earlier[:messages] + [earlier[messages].content[:characters] + first.content] + rest

Observations are numbered in the order in which they are encoded, and decoded in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from marl_verl.episode.messages import Message, Observation
from marl_verl.episode.turn import shared_length

LEAST = 1000
"""Characters that an observation must have in common with an earlier one; otherwise it is stored whole."""


class Deltas:
    """Encodes (or decodes) the observations of one episode."""

    def __init__(self) -> None:
        self._seen: list[Sequence[Message]] = []
        self._latest: dict[str, int] = {}  # agent -> number of its latest observation

    def encode(self, agent: str, observation: Observation) -> dict[str, Any]:
        """The keys `observation` and, unless it is stored whole, `shared`: [number, messages, characters]."""
        number = self._latest.get(agent, len(self._seen) - 1)
        earlier = self._seen[number] if number >= 0 else ()
        self._latest[agent] = len(self._seen)
        self._seen.append(observation)
        messages = shared_messages(earlier, observation)
        characters = 0
        if messages < min(len(earlier), len(observation)):
            old, new = earlier[messages], observation[messages]
            if old["role"] == new["role"]:
                characters = shared_length(old["content"], new["content"])
        if characters + sum(len(message["content"]) for message in observation[:messages]) < LEAST:
            return {"observation": observation}
        added = [dict(message) for message in observation[messages:]]
        if characters:
            added[0]["content"] = added[0]["content"][characters:]
        return {"observation": added, "shared": [number, messages, characters]}

    def decode(self, data: dict[str, Any]) -> dict[str, Any]:
        """`data` with its whole observation. ValueError: what it shares does not exist."""
        whole = data.get("observation")
        if "shared" in data:
            try:
                number, messages, characters = data["shared"]
                earlier, added = self._seen[number], [dict(message) for message in data["observation"]]
                if characters:
                    added[0]["content"] = earlier[messages]["content"][:characters] + added[0]["content"]
                whole = [*earlier[:messages], *added]
            except (TypeError, ValueError, LookupError) as error:
                raise ValueError(f"no earlier observation has what is shared: {data['shared']!r:.60}") from error
        self._seen.append(whole if isinstance(whole, list | tuple) else ())
        return {**data, "observation": whole} if whole is not None else data


def shared_messages(one: Sequence[Message], other: Sequence[Message]) -> int:
    """Number of equal messages at the beginning of two conversations."""
    shorter = min(len(one), len(other))
    return next((i for i in range(shorter) if one[i] is not other[i] and one[i] != other[i]), shorter)
