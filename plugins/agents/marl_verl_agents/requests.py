"""Requests of clients: which keys of a body are read, have no influence or are refused, and what is asked.

A key is never ignored silently. It is read, is on one of the two lists here, or is refused by its name.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marl_verl.episode.messages import Message, Parameters, as_observation, as_parameters, json_value

NO_INFLUENCE = (
    *("model", "stream", "stream_options", "stream_interval", "store", "seed", "metadata", "user", "user_profile_id"),
    *("workspace_id", "safety_identifier", "service_tier", "speed", "inference_geo", "priority", "request_id"),
    *("session_id", "cache_control", "cache_salt", "prompt_cache_key", "prompt_cache_options"),
    "prompt_cache_retention",
)
"""Keys that change neither the prompt nor the distribution that is sampled; a run has its own seeds."""

DEFAULTS: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("frequency_penalty", "presence_penalty", "min_p", "min_tokens", "top_logprobs"), (0,)),
    **dict.fromkeys(("repetition_penalty", "length_penalty", "n", "best_of"), (1,)),
    **dict.fromkeys(("logit_bias", "chat_template_kwargs", "vllm_xargs"), ({},)),
    **dict.fromkeys(("bad_words", "functions", "stop_token_ids"), ([],)),
    **dict.fromkeys(
        ("logprobs", "background", "ignore_eos", "include_stop_str_in_output", "use_beam_search"), (False,)
    ),
    **dict.fromkeys(("echo", "continue_final_message", "add_special_tokens", "enable_response_messages"), (False,)),
    **dict.fromkeys(("return_token_ids", "return_tokens_as_token_ids", "return_token_offsets"), (False,)),
    **dict.fromkeys(("return_prompt_text", "return_assistant_tokens_mask", "defer_loading"), (False,)),
    **dict.fromkeys(("add_generation_prompt", "include_reasoning", "parallel_tool_calls"), (True,)),
    **dict.fromkeys(("skip_special_tokens", "spaces_between_special_tokens"), (True,)),
    **{"top_k": (-1, 0), "modalities": (["text"],), "verbosity": ("medium",), "truncation": ("disabled",)},
}
"""Keys that a request may set to their default only."""
CACHING = ("cache_control", "cache_breakpoint")
"""Keys of a message that say where a server may cache the prompt (Anthropic, CrewAI)."""

SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


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


def parse(body: bytes, ignored: Collection[str] = ()) -> dict[str, Any]:
    """The keys of a body without those that are `ignored`, also inside `text`, `tool_choice` and the like.
    RequestError: it is not a JSON object, or one that no client writes."""
    try:
        keys = json_value(body)
        if SURROGATE.search(body):
            json.dumps(keys, ensure_ascii=False).encode()  # half of a character cannot be tokenized
    except ValueError as error:
        raise RequestError(f"the body is not JSON: {error}") from error
    if not isinstance(keys, dict):
        raise RequestError(f"the body must be a JSON object, got {keys!r:.60}")
    return {key: _without(value, ignored) for key, value in keys.items() if key not in ignored}


def _without(value: Any, ignored: Collection[str]) -> Any:
    return {key: child for key, child in value.items() if key not in ignored} if isinstance(value, dict) else value


def check_keys(keys: Mapping[str, Any], read: Collection[str], where: str = "") -> None:
    """RequestError for a key that is set, that is not in `read`, and that may change what is sampled or returned."""
    for key, value in keys.items():
        if value is None or key in read or key in NO_INFLUENCE or value in DEFAULTS.get(key, ()):
            continue
        default = f" other than {json.dumps(DEFAULTS[key][0])}" if key in DEFAULTS else ""
        why = f"'{where}{key}' is not supported{default}: the policy would answer as if it were not set"
        raise RequestError(f"{why}. Remove it, or drop it by `ignored`", f"{where}{key}")


def parameters_of(body: Mapping[str, Any], keys: Mapping[str, str], tool_keys: Mapping[str, str]) -> dict[str, Any]:
    """The parameters of an act in a body whose tools are functions without a wrapper.

    Args:
        keys: key of the body -> parameter.
        tool_keys: key of a tool -> its name in a function.

    Raises:
        RequestError: a tool of the API's server, such as a web search.
    """
    parameters: dict[str, Any] = {new: body[key] for key, new in keys.items() if body.get(key) is not None}
    for tool in body.get("tools") or ():
        kind = tool.get("type", "custom") if isinstance(tool, Mapping) else tool
        if kind not in ("custom", "function"):
            raise RequestError(
                f"a tool of type {kind!r} is not supported: tools must be functions of the workflow", "tools"
            )
        check_keys(tool, {"type", "eager_input_streaming", *tool_keys}, "tools.")
        function = {new: tool[key] for key, new in tool_keys.items() if tool.get(key) is not None}
        parameters.setdefault("tools", []).append({"type": "function", "function": function})
    return parameters


def request(body: Mapping[str, Any], messages: Any, parameters: Parameters, key: str = "messages") -> Request:
    """A checked request; `key` is that of its messages. RequestError for wrong messages or parameters."""
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise RequestError(f"'{key}' must be a list", key)
    try:
        observation = as_observation([_cleaned(message) for message in messages])
    except TypeError as error:
        raise RequestError(str(error), key) from error
    try:
        checked = as_parameters(parameters)
    except TypeError as error:
        raise RequestError(str(error), str(error).split("'")[1] if "'" in str(error) else None) from error
    options = body.get("stream_options")
    with_usage = isinstance(options, Mapping) and bool(options.get("include_usage"))
    n = body.get("n") or 1
    return Request(str(body.get("model") or ""), observation, checked or {}, n, bool(body.get("stream")), with_usage)


def _cleaned(message: Any) -> Any:
    """A message without the empty keys that clients add (`refusal`, `annotations`, ...)."""
    if not isinstance(message, Mapping):
        return message
    named = {key: value for key, value in message.items() if key not in CACHING}
    return {key: value for key, value in named.items() if value or key in ("role", "content")}
