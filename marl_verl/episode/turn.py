"""Acts, actions and turns: an act is a request for an action; both together make a turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, str]
"""{"role": "system" | "user" | "assistant" | ..., "content": text}: one entry of a chat."""

Observation = tuple[Message, ...]


def as_observation(observation: str | Sequence[Mapping[str, str]]) -> Observation:
    """Copy an observation as chat messages; a plain text becomes one user message.

    Raises:
        TypeError: neither a text nor a non-empty list of messages with the texts `role` and `content`.
    """
    if isinstance(observation, str):
        return ({"role": "user", "content": observation},)
    if not isinstance(observation, Sequence) or not observation:
        raise TypeError(f"an observation must be a text or a list of messages, got {observation!r}")
    messages: list[Any] = [*observation]
    for message in messages:
        texts = isinstance(message, Mapping) and all(isinstance(value, str) for value in message.values())
        if not texts or message.keys() != {"role", "content"}:
            raise TypeError(f'a message must be {{"role": text, "content": text}}, got {message!r}')
    return tuple({"role": message["role"], "content": message["content"]} for message in messages)


@dataclass(frozen=True, slots=True)
class Act:
    """A request for an action of an agent; the run waits for it.

    Attributes:
        agent: name of the agent.
        slot: with the agent, the act's key in the journal: "0", "1", ... for the agent's n-th act; in a named slot
            "name", "name#1", "name#2", ...
        turn: n within the lane (agent and slot name), from 0; concurrent lanes share the turn number.
        index: number of acts that the run reached before; with concurrent acts, final once the run has finished.
        observation: what the agent sees, as chat messages.
        joint: number of its joint move, None for a single act.
    """

    agent: str
    slot: str
    turn: int
    index: int
    observation: Observation
    joint: int | None = None

    @property
    def key(self) -> tuple[str, str]:
        """(agent, slot)."""
        return self.agent, self.slot

    def __str__(self) -> str:
        return f"act {self.agent}:{self.slot}"


def changed(old: Act, new: Act) -> str:
    """A description of the first difference between two observations."""
    before, now = ("\n".join(f"{m['role']}: {m['content']}" for m in act.observation) for act in (old, new))
    at = shared_length(before, now)
    start = max(0, at - 20)
    return f"recorded ...{before[start : at + 40]!r}, now ...{now[start : at + 40]!r} (from character {at})"


def shared_length(one: str, other: str) -> int:
    """The length of the common prefix of two texts."""
    low, high = 0, min(len(one), len(other))
    while low < high:  # compares halves, since a loop over characters is slow for long texts
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


@dataclass(frozen=True, slots=True)
class Action:
    """A sampled action. The token ids are those of the server; the text is never tokenised again.

    Attributes:
        prompt_ids: [P] token ids of the whole prompt.
        response_ids: [L] token ids of the action; empty if an external endpoint returned only a text.
        log_probs: [L] natural log-probability of each action token when sampled; empty if unknown.
        stop_reason: why sampling ended, as reported by the server.
        version: weight version (update step) of the policy that sampled the action.
        seconds: wall-clock time of the sampling.
        tokens: number of tokens as reported by the server, for an action without ids.
    """

    text: str
    prompt_ids: list[int] = field(default_factory=list)
    response_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    stop_reason: str | None = None
    version: int | None = None
    seconds: float = 0.0
    tokens: int | None = None

    @property
    def length(self) -> int:
        """Number of tokens, as counted by token budgets and metrics."""
        return len(self.response_ids) if self.tokens is None else self.tokens


@dataclass(slots=True)
class Turn:
    """One act of an episode with its action, identity and rewards; it becomes one row.

    Attributes:
        uid, session, index: identity of the row: task instance, episode of that task, position in the episode.
        policy: the policy that acted.
        node, parent: position in a sampled tree; None without a tree.
        rewards: reward component -> value for this turn: "role", "tool", a replay credit. In a tree also "team", the
            score of the state that the turn leads to.
        team_reward: score of the finished episode of the turn; None in a tree, and without an episode.
        invalid: why the workflow marked the action as invalid; None if it did not.
        called: the agent that the workflow called, if another agent took the act.
    """

    uid: str
    session: int
    index: int
    agent: str
    policy: str
    slot: str
    turn: int
    node: str | None
    parent: str | None
    observation: Observation
    action: Action
    rewards: dict[str, float] = field(default_factory=dict)
    team_reward: float | None = None
    invalid: str | None = None
    called: str | None = None

    @property
    def key(self) -> tuple[str, str]:
        """(agent that the workflow called, slot): the act's key in the journal."""
        return self.called or self.agent, self.slot

    @property
    def length(self) -> int:
        """Tokens of the action."""
        return self.action.length

    @property
    def components(self) -> dict[str, float]:
        """`rewards`, with the episode's team reward as component "team"."""
        return self.rewards if self.team_reward is None else {"team": self.team_reward, **self.rewards}

    @classmethod
    def of(
        cls,
        act: Act,
        action: Action,
        uid: str,
        session: int,
        policy: str,
        node: str | None = None,
        parent: str | None = None,
        agent: str | None = None,
        index: int | None = None,
    ) -> Turn:
        """Create the turn of an act and its action, without rewards.

        Args:
            agent: the agent that acted, if not `act.agent`.
            index: position in the episode, in trees, where several turns have the same `act.index`.
        """
        place, who = act.index if index is None else index, agent or act.agent
        turn = cls(uid, session, place, who, policy, act.slot, act.turn, node, parent, act.observation, action)
        turn.called = None if who == act.agent else act.agent
        return turn
