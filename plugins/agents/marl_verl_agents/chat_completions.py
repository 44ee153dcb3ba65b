"""OpenAI's chat completions: a request body as the arguments of acts, and actions as a response, without a client.

Which keys of a body are read, have no influence or are refused, and what is asked, is here for the other APIs, too. A
key is never ignored silently: it is read, is on one of the two lists here, or is refused by its name. Ids are those of
the acts, and `created` is 0, so that a replay gives the same response.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from marl_verl.episode.messages import PARAMETERS, Message, Parameters, as_observation, as_parameters
from marl_verl.episode.turn import Action

KEYS = {**{key: key for key in PARAMETERS}, "max_completion_tokens": "max_tokens"}
"""Keys of a request -> parameters of an act."""
NO_INFLUENCE = (
    *("model", "stream", "stream_options", "stream_interval", "store", "seed", "metadata", "user", "user_profile_id"),
    *("workspace_id", "safety_identifier", "service_tier", "speed", "inference_geo", "priority", "request_id"),
    *("session_id", "cache_control", "cache_salt", "prompt_cache_key", "prompt_cache_options"),
    "prompt_cache_retention",
)
"""Keys that change neither the prompt nor the distribution that is sampled; a run has its own seeds."""
DEFAULTS: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("frequency_penalty", "presence_penalty", "min_p", "min_tokens", "top_logprobs"), (0,)),
    **dict.fromkeys(("repetition_penalty", "n", "best_of"), (1,)),
    **dict.fromkeys(("logit_bias", "chat_template_kwargs"), ({},)),
    **dict.fromkeys(("functions", "stop_token_ids"), ([],)),
    **dict.fromkeys(("logprobs", "background", "ignore_eos", "echo", "defer_loading"), (False,)),
    **dict.fromkeys(("add_generation_prompt", "parallel_tool_calls", "skip_special_tokens"), (True,)),
    **{"top_k": (-1, 0), "modalities": (["text"],), "verbosity": ("medium",), "truncation": ("disabled",)},
}
"""Keys that a request may set to their default only."""
CACHING = ("cache_control", "cache_breakpoint")
"""Keys of a message that say where a server may cache the prompt (Anthropic, CrewAI)."""
MOST_CHOICES = 64


class RequestError(Exception):
    """A request that OpenAI's API would refuse; `param` is the key that is wrong."""

    def __init__(self, message: str, param: str | None = None, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.param, self.status, self.code = param, status, code

    @property
    def body(self) -> dict[str, Any]:
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


def parse(body: bytes, ignored: Collection[str] = ()) -> dict[str, Any]:
    """The keys of a body without those that are `ignored`, also inside `text`, `tool_choice` and the like.
    RequestError: it is not a JSON object, or one that no client writes."""
    try:
        keys = msgspec.json.decode(body)
    except (ValueError, RecursionError) as error:  # also half of a character, which cannot be tokenized
        raise RequestError(f"the body is not JSON: {error}") from error
    if not isinstance(keys, dict):
        raise RequestError(f"the body must be a JSON object, got {keys!r:.60}")
    kept = {key: value for key, value in keys.items() if key not in ignored}
    for key, value in kept.items():
        if isinstance(value, dict):
            kept[key] = {inner: child for inner, child in value.items() if inner not in ignored}
    return kept


def check_keys(keys: Mapping[str, Any], read: Collection[str], where: str = "") -> None:
    """RequestError for a key that is set, that is not in `read`, and that may change what is sampled or returned."""
    for key, value in keys.items():
        if value is None or key in read or key in NO_INFLUENCE or value in DEFAULTS.get(key, ()):
            continue
        default = f" other than {json.dumps(DEFAULTS[key][0])}" if key in DEFAULTS else ""
        why = f"'{where}{key}' is not supported{default}: the policy would answer as if it were not set"
        raise RequestError(f"{why}. Remove it, or drop it by `ignored`", f"{where}{key}")


def functions(tools: Any, keys: Mapping[str, str]) -> list[dict[str, Any]]:
    """Tools without a wrapper as tools of an act; `keys`: key of a tool -> its name in a function. RequestError: a tool
    of the API's server, such as a web search."""
    wrapped = []
    for tool in tools or ():
        kind = tool.get("type", "custom") if isinstance(tool, Mapping) else tool
        if kind not in ("custom", "function"):
            raise RequestError(f"a tool of type {kind!r} is not supported: tools must be functions", "tools")
        check_keys(tool, {"type", "eager_input_streaming", *keys}, "tools.")
        function = {new: tool[key] for key, new in keys.items() if tool.get(key) is not None}
        wrapped.append({"type": "function", "function": function})
    return wrapped


def read(body: Mapping[str, Any]) -> Request:
    """Read the body of a request to /chat/completions. RequestError if it is not supported."""
    check_keys(body, {*KEYS, "messages", "n"})
    if (body.get("n") or 1) not in range(1, MOST_CHOICES + 1):
        raise RequestError(f"'n' must be a whole number from 1 to {MOST_CHOICES}, got {body['n']!r}", "n")
    return request(body, body["messages"], KEYS)


def request(body: Mapping[str, Any], messages: Any, keys: Mapping[str, str], **parameters: Any) -> Request:
    """A checked request. `keys`: key of the body -> parameter of an act; `parameters` are those that the caller has
    converted. TypeError for wrong messages or parameters."""
    parameters |= {name: body[read] for read, name in keys.items() if body.get(read) is not None}
    observation = as_observation([_cleaned(message) for message in messages])
    with_usage = bool((body.get("stream_options") or {}).get("include_usage"))
    model, stream = str(body.get("model") or ""), bool(body.get("stream"))
    return Request(model, observation, as_parameters(parameters) or {}, body.get("n") or 1, stream, with_usage)


def _cleaned(message: Any) -> Any:
    """A message without the empty keys that clients add (`refusal`, `annotations`, ...)."""
    kept = {key for key, value in message.items() if value or key in ("role", "content")} - {*CACHING}
    return {key: value for key, value in message.items() if key in kept}


def usage(actions: Sequence[Action]) -> tuple[int, int]:
    """(tokens of the prompt, tokens of all completions)."""
    return len(actions[0].prompt_ids), sum(action.length for action in actions)


def response(id: str, asked: Request, actions: Sequence[Action]) -> dict[str, Any]:
    before, sampled = usage(actions)
    choices = []
    for index, action in enumerate(actions):
        why = "length" if action.stop_reason == "length" else "tool_calls" if action.tool_calls else "stop"
        message: Message = {**action.message, "refusal": None}
        if action.tool_calls and not action.text:
            message["content"] = None
        choices.append({"index": index, "message": message, "finish_reason": why, "logprobs": None})
    used = {"prompt_tokens": before, "completion_tokens": sampled, "total_tokens": before + sampled}
    head = {"id": f"chatcmpl-{id}", "object": "chat.completion", "created": 0, "model": asked.model}
    return {**head, "choices": choices, "usage": used}


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
