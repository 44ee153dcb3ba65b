"""OpenAI's chat completions: a request body as the arguments of acts, and actions as a response, without a client.

Ids are those of the acts, and `created` is 0, so that a replay gives the same response.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marl_verl.episode.messages import Message, Parameters, as_observation, as_parameters
from marl_verl.episode.turn import Action

KEYS = {
    **{key: key for key in ("tools", "tool_choice", "response_format", "stop", "max_tokens", "temperature", "top_p")},
    "max_completion_tokens": "max_tokens",
}
"""Keys of a request that change what is sampled -> parameters of an act."""

REFUSED = (
    *("functions", "function_call", "logprobs", "top_logprobs", "audio", "logit_bias", "prediction"),
    *("presence_penalty", "frequency_penalty", "web_search_options"),
)
"""Keys that would change the sampling or the response in ways that are not supported; other keys have no effect."""

MOST_CHOICES = 64


class RequestError(Exception):
    """A request that OpenAI's API would refuse; `param` is the key that is wrong."""

    def __init__(self, message: str, param: str | None = None, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.param, self.status, self.code = param, status, code

    @property
    def body(self) -> dict[str, Any]:
        """The response body in OpenAI's format."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True)
class Request:
    """A request of `n` acts with the same messages; `model` is the key that names the agent, and `usage` whether a
    stream ends with it."""

    model: str
    messages: tuple[Message, ...]
    parameters: Parameters
    n: int = 1
    stream: bool = False
    usage: bool = False


def read(body: Mapping[str, Any]) -> Request:
    """Read the body of a request to /chat/completions. RequestError if it is invalid or not supported."""
    if used := [key for key in REFUSED if body.get(key)]:
        raise RequestError(f"'{used[0]}' is not supported: an act has only {', '.join(KEYS)}", used[0])
    n = body.get("n") or 1
    if not isinstance(n, int) or not 1 <= n <= MOST_CHOICES:
        raise RequestError(f"'n' must be a whole number from 1 to {MOST_CHOICES}, got {n!r}", "n")
    return request(
        body, body.get("messages"), {new: body[key] for key, new in KEYS.items() if body.get(key) is not None}, n
    )


def request(body: Mapping[str, Any], messages: Any, parameters: Parameters, n: int = 1) -> Request:
    """A checked request. RequestError for wrong messages or parameters."""
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise RequestError("'messages' must be a list", "messages")
    try:
        observation = as_observation([_cleaned(message) for message in messages])
    except TypeError as error:
        raise RequestError(str(error), "messages") from error
    try:
        found = as_parameters(parameters)
    except TypeError as error:
        raise RequestError(str(error), str(error).split("'")[1] if "'" in str(error) else None) from error
    options = body.get("stream_options")
    with_usage = isinstance(options, Mapping) and bool(options.get("include_usage"))
    return Request(str(body.get("model") or ""), observation, found or {}, n, bool(body.get("stream")), with_usage)


def _cleaned(message: Any) -> Any:
    """A message without the empty keys that clients add (`refusal`, `annotations`, ...); developer is system."""
    if not isinstance(message, Mapping):
        return message
    kept = {key: value for key, value in message.items() if value or key in ("role", "content")}
    return {**kept, "role": "system"} if kept.get("role") == "developer" else kept


def usage(actions: Sequence[Action]) -> tuple[int, int]:
    """(tokens of the prompt, tokens of all completions)."""
    return len(actions[0].prompt_ids), sum(action.length for action in actions)


def response(id: str, model: str, actions: Sequence[Action]) -> dict[str, Any]:
    """A chat completion with one choice per action."""
    asked, sampled = usage(actions)
    choices = []
    for index, action in enumerate(actions):
        why = "tool_calls" if action.tool_calls else "length" if action.stop_reason == "length" else "stop"
        message: Message = {**action.message, "refusal": None}
        if action.tool_calls and not action.text:
            message["content"] = None
        choices.append({"index": index, "message": message, "finish_reason": why, "logprobs": None})
    return {
        "id": f"chatcmpl-{id}",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": choices,
        "usage": {"prompt_tokens": asked, "completion_tokens": sampled, "total_tokens": asked + sampled},
    }


def chunks(completion: Mapping[str, Any], with_usage: bool) -> Iterator[dict[str, Any]]:
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
    if with_usage:
        yield {**head, "choices": [], "usage": used}


def stream(events: Iterator[dict[str, Any]], named: bool = False) -> bytes:
    """Server-sent events; `named`: with an `event` line, and without the final [DONE]."""
    lines = [(f"event: {each['type']}\n" if named else "") + f"data: {json.dumps(each)}\n\n" for each in events]
    return "".join([*lines, *([] if named else ["data: [DONE]\n\n"])]).encode()
