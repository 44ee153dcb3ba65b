"""Which conversation of an agent a request of a client continues, and its replies as they were sampled."""

import json
import re
from collections.abc import Mapping
from typing import Any

from marl_verl.episode.effects import Effects
from marl_verl.episode.messages import Message, Observation, call_arguments


def continued(run: Effects, agent: str, observation: Observation, slot: str | None, new: str | None) -> str | None:
    """The slot of a request from a task in `slot`: that of the lane, of this task or of its parallel tasks, whose last
    observation and reply begin the request (the longest, if several do), otherwise `new`."""
    ends, said = [], [_compared(message) for message in observation]
    for act, action in run.turns:
        name, at = act.lane[1], len(act.observation)
        if (
            act.agent == agent
            and act.turn + 1 == run.lanes[act.lane]
            and _within(name, slot)
            and said[: at + 1] == [_compared(message) for message in (*act.observation, action.message)]
        ):
            # slots are ordered by the numbers in their names, in the order in which their tasks were created
            ends.append((-at, name != slot, [int(number) for number in re.findall(r"\d+", name or "")], name))
    return min(ends, key=lambda end: end[:3])[-1] if ends else new


def as_sampled(run: Effects, agent: str, observation: Observation, slot: str | None) -> Observation:
    """An observation whose replies of this lane are as they were sampled, where they differ by outer white space: the
    tokens of a conversation are then the beginning of its next prompt."""
    messages = list(observation)
    for act, action in run.turns:
        at = len(act.observation)
        if act.lane == (agent, slot) and tuple(messages[:at]) == act.observation and messages[at:]:
            messages[at] = _restored(messages[at], action.message)
    return tuple(messages)


def _within(slot: str | None, outer: str | None) -> bool:
    """Whether a slot is `outer`, or that of a choice, a conversation or a parallel task in it; no task beside `outer`
    uses it."""
    if slot is None or slot == outer:
        return slot == outer
    return slot.startswith(("parallel-", "choice", "conversation-") if outer is None else f"{outer}.")


def _compared(message: Mapping[str, Any]) -> str:
    """A message as a text that is equal for a reply and for what a client makes of it: without the reasoning, which
    some leave out, without outer white space, and with the arguments of calls as values."""
    kept = {key: value for key, value in message.items() if key not in ("reasoning_content", "tool_calls")}
    if message["role"] == "assistant":
        kept["content"] = message["content"].strip()
    if calls := message.get("tool_calls"):
        kept["tool_calls"] = [(call["id"], call["function"]["name"], call_arguments(call)) for call in calls]
    return json.dumps(kept, sort_keys=True)


def _restored(message: Message, reply: Message) -> Message:
    """A message of a client as the reply that it repeats, with the white space that was sampled; itself if it repeats
    another one, or other reasoning."""
    thoughts, replied = (part.get("reasoning_content", "").strip() for part in (message, reply))
    if message == reply or (thoughts and thoughts != replied) or _compared(message) != _compared(reply):
        return message
    return {key: value for key, value in reply.items() if key != "reasoning_content" or thoughts}
