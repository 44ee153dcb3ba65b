"""OpenAI's chat completions: a request body as the arguments of acts, and actions as a response, without a client.

Ids are those of the acts, and `created` is 0, so that a replay gives the same response.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from marl_verl.episode.messages import PARAMETERS, Message
from marl_verl.episode.turn import Action
from marl_verl_agents.requests import Request, RequestError, check_keys, request

KEYS = {**{key: key for key in PARAMETERS}, "max_completion_tokens": "max_tokens"}
"""Keys of a request -> parameters of an act."""

MOST_CHOICES = 64


def read(body: Mapping[str, Any]) -> Request:
    """Read the body of a request to /chat/completions. RequestError if it is invalid or not supported."""
    check_keys(body, {*KEYS, "messages", "n"})
    n = 1 if body.get("n") is None else body["n"]
    if not isinstance(n, int) or not 1 <= n <= MOST_CHOICES:
        raise RequestError(f"'n' must be a whole number from 1 to {MOST_CHOICES}, got {n!r}", "n")
    parameters = {new: body[key] for key, new in KEYS.items() if body.get(key) is not None}
    return request(body, body.get("messages"), parameters)


def usage(actions: Sequence[Action]) -> tuple[int, int]:
    """(tokens of the prompt, tokens of all completions)."""
    return len(actions[0].prompt_ids), sum(action.length for action in actions)


def response(id: str, asked: Request, actions: Sequence[Action]) -> dict[str, Any]:
    """A chat completion with one choice per action."""
    before, sampled = usage(actions)
    choices = []
    for index, action in enumerate(actions):
        why = "length" if action.stop_reason == "length" else "tool_calls" if action.tool_calls else "stop"
        message: Message = {**action.message, "refusal": None}
        if action.tool_calls and not action.text:
            message["content"] = None
        choices.append({"index": index, "message": message, "finish_reason": why, "logprobs": None})
    return {
        "id": f"chatcmpl-{id}",
        "object": "chat.completion",
        "created": 0,
        "model": asked.model,
        "choices": choices,
        "usage": {"prompt_tokens": before, "completion_tokens": sampled, "total_tokens": before + sampled},
    }


def events(completion: Mapping[str, Any], asked: Request) -> Iterator[dict[str, Any]]:
    """The completion as the chunks of a stream: each choice at once, then its end, then the usage if it was asked for.
    Its chunk has no choice, which a program that did not ask for it does not expect."""
    head = {**completion, "object": "chat.completion.chunk"}
    used = head.pop("usage")
    for choice in completion["choices"]:
        message = {key: value for key, value in choice["message"].items() if value is not None}
        if calls := message.get("tool_calls"):
            message["tool_calls"] = [{**call, "index": index} for index, call in enumerate(calls)]
        for delta, why in ((message, None), ({}, choice["finish_reason"])):
            yield {**head, "choices": [{"index": choice["index"], "delta": delta, "finish_reason": why}]}
    if asked.usage:
        yield {**head, "choices": [], "usage": used}


def server_sent(events: Iterator[dict[str, Any]], named: bool = False) -> bytes:
    """Server-sent events; `named`: with an `event` line, and without the final [DONE]."""
    lines = [(f"event: {event['type']}\n" if named else "") + f"data: {json.dumps(event)}\n\n" for event in events]
    return "".join([*lines, *([] if named else ["data: [DONE]\n\n"])]).encode()
