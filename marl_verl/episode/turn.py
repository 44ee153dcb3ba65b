"""Acts, actions and turns: an act is a request for an action; both together make a turn."""

import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import Any

from marl_verl.episode.messages import Message, Observation

JOIN = "+"  # separator of node names: a row at several joint nodes (a crossed tree) lists all of them, "n0+n1"
DIFFERS_AT = "differs_at"  # a column of rows whose turn continues a conversation: `Turn.differs_at`


@dataclass(frozen=True, slots=True)
class Act:
    """A request for an action of an agent; the run waits for it.

    Attributes:
        agent: name of the agent; "worker#2" for a spawned one of role "worker".
        slot: with the agent, the act's key in the journal: "0", "1", ... for the agent's n-th act; in a named slot
            "name", "name#1", "name#2", ...
        turn: n within the lane (agent and slot name), from 0; concurrent lanes share the turn number.
        index: number of acts that the run reached before; with concurrent acts, final once the run has finished.
        observation: what the agent sees, as chat messages.
        joint: number of its joint move, None for a single act.
        parameters: of the request beside the messages (`tools`, `max_tokens`, ...); None without any.
        former: the action of the act before it in its lane, whose tokens the prompt repeats if the observation does.
    """

    agent: str
    slot: str
    turn: int
    index: int
    observation: Observation
    joint: int | None = None
    parameters: dict[str, Any] | None = None
    former: "Action | None" = field(default=None, compare=False, repr=False)

    @property
    def key(self) -> tuple[str, str]:
        """(agent, slot)."""
        return self.agent, self.slot

    @property
    def lane(self) -> tuple[str, str | None]:
        """(agent, slot name), whose acts `turn` counts."""
        return self.agent, None if self.slot.isdigit() else self.slot.partition("#")[0]

    @property
    def role(self) -> str:
        return role_of(self.agent)

    @property
    def seen(self) -> tuple[Observation, dict[str, Any] | None]:
        """What an action depends on, and what must be equal on replay: observation and parameters."""
        return self.observation, self.parameters

    def __str__(self) -> str:
        return f"act {self.agent}:{self.slot}"


def role_of(agent: str) -> str:
    """The role of an agent, as in config: "worker" of the spawned agent "worker#2", else the agent's own name."""
    return agent.partition("#")[0]


def slot_name(name: str | None, turn: int) -> str:
    """The slot of the n-th act in a lane."""
    if name is None:
        return str(turn)
    return f"{name}#{turn}" if turn else name


def changed(old: Act, new: Act) -> str:
    """A description of the first difference between two observations, or between their parameters."""
    before, now = (json.dumps(act.seen, ensure_ascii=False) for act in (old, new))
    at = shared_length(before, now)
    start = max(0, at - 20)
    return f"recorded ...{before[start : at + 40]!r}, now ...{now[start : at + 40]!r} (from character {at})"


def shared_length(text: str, other: str) -> int:
    """The length of the common prefix of two texts."""
    low, high = 0, min(len(text), len(other))
    while low < high:  # compares halves, since a loop over characters is slow for long texts
        middle = (low + high + 1) // 2
        if text[low:middle] == other[low:middle]:
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
        tool_calls: the tool calls that were parsed from it, in OpenAI's format; `text` is what stands beside them.
        reasoning: the reasoning that the policy's reasoning parser separated from `text`.
        malformed: why it is text only, though the model began a tool call; such an action is marked as invalid.
        stop: the stop text that ended it, which is not in `text`; None if it ended by itself or at the limit.
    """

    text: str
    prompt_ids: list[int] = field(default_factory=list)
    response_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    stop_reason: str | None = None
    version: int | None = None
    seconds: float = 0.0
    tokens: int | None = None
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    reasoning: str | None = None
    malformed: str | None = None
    stop: str | None = None

    @property
    def message(self) -> Message:
        """The action as a chat message, to continue a conversation."""
        extra = {"reasoning_content": self.reasoning, "tool_calls": self.tool_calls}
        return {"role": "assistant", "content": self.text, **{key: value for key, value in extra.items() if value}}

    @property
    def length(self) -> int:
        """Number of tokens, as counted by token budgets and metrics."""
        return len(self.response_ids) if self.tokens is None else self.tokens


def with_ids(act: Act, action: Action) -> Action:
    """The action with ids of its tool calls that are unique in the episode, and equal on every replay; only its first
    call if the act excludes parallel ones."""
    most = 1 if (act.parameters or {}).get("parallel_tool_calls") is False else None
    calls = [
        {**call, "id": hashlib.blake2b(f"{act} {n}".encode(), digest_size=5).hexdigest()[:9]}  # 9: as Mistral demands
        for n, call in enumerate(action.tool_calls[:most])
    ]
    return replace(action, tool_calls=calls) if calls else action


@dataclass(slots=True)
class Turn:
    """An act with its action, and its place among the rows: one turn is one row.

    Attributes:
        uid, session, index: identity of the row: task instance, episode of that task, position in the episode (default:
            that of the act; in trees, several turns have the same `act.index`).
        policy: the policy that acted.
        agent: the agent that acted (default: the one that the workflow called).
        node, parent: position in a sampled tree; None without a tree.
        rewards: reward component -> value for this turn: "role", "tool", a replay credit. In a tree also "team", the
            score of the state that the turn leads to.
        team_reward: score of the finished episode of the turn, or of the agent's side; None in a tree, and without an
            episode.
        invalid: why the workflow marked the action as invalid; None if it did not.
        columns: what the algorithm's column functions computed: name -> a number, or a number per response token.
        transition: in a tree, an act of an agent that is not explored: a part of its node, and no row.
    """

    act: Act
    action: Action
    uid: str = ""
    session: int = 0
    policy: str = ""
    agent: str = ""
    index: int = -1
    node: str | None = None
    parent: str | None = None
    rewards: dict[str, float] = field(default_factory=dict)
    team_reward: float | None = None
    invalid: str | None = None
    columns: dict[str, float | list[float]] = field(default_factory=dict)
    transition: bool = False

    def __post_init__(self) -> None:
        self.agent = self.agent or self.act.agent
        self.index = self.act.index if self.index < 0 else self.index

    @property
    def key(self) -> tuple[str, str]:
        """(agent that the workflow called, slot): the act's key in the journal."""
        return self.act.key

    @property
    def role(self) -> str:
        """The role of the agent that acted, as in config."""
        return role_of(self.agent)

    @property
    def row(self) -> str:
        """The key of its row: "{uid}_{session}_{index}", as in verl's TransferQueue."""
        return f"{self.uid}_{self.session}_{self.index}"

    @property
    def called(self) -> str | None:
        """The agent that the workflow called, if another agent took the act."""
        return None if self.agent == self.act.agent else self.act.agent

    @property
    def slot(self) -> str:
        return self.act.slot

    @property
    def turn(self) -> int:
        return self.act.turn

    @property
    def observation(self) -> Observation:
        return self.act.observation

    @property
    def parameters(self) -> dict[str, Any] | None:
        return self.act.parameters

    @property
    def length(self) -> int:
        """Tokens of the action."""
        return self.action.length

    @property
    def components(self) -> dict[str, float]:
        """`rewards`, with the episode's team reward as component "team"."""
        return self.rewards if self.team_reward is None else {"team": self.team_reward, **self.rewards}

    @property
    def obs(self) -> str:
        """A digest that is equal for turns with equal messages and parameters."""
        shown: list[Any] = [[m["role"], m["content"]] if len(m) == 2 else m for m in self.observation]
        seen = json.dumps(shown if self.parameters is None else [shown, self.parameters], sort_keys=True)
        return hashlib.blake2s(seen.encode(), digest_size=8).hexdigest()

    @property
    def differs_at(self) -> int | None:
        """The position of the first token of the prompt that is not that of the turn that it continues; -1 if it begins
        with all of them, so that both can be trained as one sequence; None if the turn continues none of its lane."""
        former, prompt = self.act.former, self.action.prompt_ids
        if former is None or not former.response_ids or not prompt or former.message not in self.observation:
            return None
        whole = [*former.prompt_ids, *former.response_ids]
        if prompt[: len(whole)] == whole:
            return -1
        pairs = enumerate(zip(whole, prompt, strict=False))
        return next((at for at, (former_id, prompt_id) in pairs if former_id != prompt_id), len(prompt))
