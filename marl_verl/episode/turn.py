"""An act that waits, the action that answers it, and the turn that both become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, str]
"""{"role": "system" | "user" | "assistant" | ..., "content": text}: one entry of a chat."""

Observation = tuple[Message, ...]


def as_observation(observation: str | Sequence[Mapping[str, str]]) -> Observation:
    """The messages an agent sees, copied; a plain text becomes one user message. TypeError: neither a text nor messages
    with `role` and `content` as texts, or no message at all."""
    if isinstance(observation, str):
        return ({"role": "user", "content": observation},)
    if not isinstance(observation, Sequence) or not observation:
        raise TypeError(f"an observation is a text or a list of messages, got {observation!r}")
    messages: list[Any] = [*observation]
    for message in messages:
        texts = isinstance(message, Mapping) and all(isinstance(value, str) for value in message.values())
        if not texts or message.keys() != {"role", "content"}:
            raise TypeError(f'a message is {{"role": text, "content": text}}, got {message!r}')
    return tuple({"role": message["role"], "content": message["content"]} for message in messages)


@dataclass(frozen=True, slots=True)
class Act:
    """Where a run waits: an agent is asked for an action.

    Attributes:
        agent: who acts.
        slot: with the agent, the act's key in the journal: "0", "1", ... for the agent's n-th call; in a named slot
            its name, then "name#1", "name#2", ...
        turn: n within that lane, from 0; concurrent lanes share the turn number.
        index: how many acts this run reached before; with concurrent acts final only when the run has finished.
        observation: what the agent sees, as chat messages.
        joint: number of the joint move it belongs to, None for an act alone.
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
    """Where two observations part, in words."""
    before, now = ("\n".join(f"{m['role']}: {m['content']}" for m in act.observation) for act in (old, new))
    at = shared_length(before, now)
    start = max(0, at - 20)
    return f"recorded ...{before[start : at + 40]!r}, now ...{now[start : at + 40]!r} (from character {at})"


def shared_length(one: str, other: str) -> int:
    """How many characters two texts have in common at their start."""
    shorter = min(len(one), len(other))
    return next((i for i in range(shorter) if one[i] != other[i]), shorter)


@dataclass(frozen=True, slots=True)
class Action:
    """What an agent did, as sampled: token ids are those of the server, never made again from the text.

    Attributes:
        prompt_ids: token ids of the whole prompt, P of them.
        response_ids: token ids of the action, L of them; none where a server outside gave a text only.
        log_probs: natural log-probability of each action token when sampled, L of them (or none if unknown).
        stop_reason: why sampling ended, as the server says it.
        version: weight version (update step) of the policy that sampled it.
        seconds: wall-clock time of the sampling.
        tokens: how many tokens the action has, where it has no ids and its server says so.
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
        """Tokens of the action: what budgets and metrics count."""
        return len(self.response_ids) if self.tokens is None else self.tokens


@dataclass(slots=True)
class Turn:
    """One act of an episode with its action, its identity and its rewards: what becomes a row.

    Attributes:
        uid, session, index: identity of the row: task instance, episode of that task, place in the episode.
        policy: the policy that acted.
        node, parent: where the turn sits in a sampled tree; None without a tree.
        rewards: reward component -> value, of what the turn itself earned: "role", "tool", a replay credit. In a tree
            also "team", the score of the state that the turn leads to.
        team_reward: score of the finished episode that the turn is part of; None in a tree, and without an episode.
        invalid: why the workflow could not use the action; None where it could.
        called: whom the workflow called, where another agent took the act.
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
        """The turn that `act` and `action` make, without rewards as yet. `agent`: who acted, where it took the act of
        another one; `index`: in a tree, where several turns have the act's own."""
        place, who = act.index if index is None else index, agent or act.agent
        turn = cls(uid, session, place, who, policy, act.slot, act.turn, node, parent, act.observation, action)
        turn.called = None if who == act.agent else act.agent
        return turn
