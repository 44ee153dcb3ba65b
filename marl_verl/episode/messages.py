"""Messages in the chat format of OpenAI, and the parameters of a request beside them, as plain JSON values.

    {"role": "user", "content": "2 + 2?"}
    {"role": "assistant", "content": "", "tool_calls": [{"id": ..., "type": "function", "function": {"name": "add",
     "arguments": "{\\"a\\": 2}"}}], "reasoning_content": "I should add."}
    {"role": "tool", "content": "4", "tool_call_id": ..., "name": "add"}

The content is always a text: text parts are joined by line breaks, as vLLM does, and a missing content is "".
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from marl_verl.errors import nearest

Message = dict[str, Any]
"""A `role` and a `content`, both texts; optional `name`, `reasoning_content`, `tool_calls` and `tool_call_id`."""

Observation = tuple[Message, ...]

Seen = str | Sequence[Mapping[str, Any]]
"""An observation as a workflow may give it: a text (one user message) or chat messages."""

Parameters = dict[str, Any]
"""Parameters of a request beside its messages: `PARAMETERS` -> value."""

TEXTS = ("name", "tool_call_id", "reasoning_content")  # optional keys with a text
PARTS = ("text", "input_text", "output_text")  # types of text parts
PARAMETERS = (
    *("tools", "tool_choice", "parallel_tool_calls", "response_format"),
    *("stop", "max_tokens", "temperature", "top_p"),
)
MOST_LEVELS = 100  # of nested JSON values
NO_IMAGES = "a run trains on token ids, and rows have no pixel values: describe the {} in text"


def as_observation(observation: str | Sequence[Mapping[str, Any]]) -> Observation:
    """Copy an observation as chat messages; a plain text becomes one user message.

    Raises:
        TypeError: neither a text nor a non-empty list of messages.
    """
    if isinstance(observation, str):
        return ({"role": "user", "content": observation},)
    if not isinstance(observation, Sequence) or not observation:
        raise TypeError(f"an observation must be a text or a list of messages, got {observation!r}")
    return tuple(as_message(message) for message in observation)


def as_message(message: Any) -> Message:
    """Copy a message. TypeError if it is not in the chat format, or contains something else than text and calls."""
    form = f'a message must be {{"role": text, "content": text}}, got {message!r}'
    if not isinstance(message, Mapping):  # e.g. a text
        raise TypeError(form)
    fields = {key: value for key, value in message.items() if value is not None}
    calls = fields.pop("tool_calls", None) or []
    role, content = fields.pop("role", None), fields.pop("content", "" if calls else None)
    content = content if isinstance(content, str) else _text(content)
    if not isinstance(role, str) or content is None:
        raise TypeError(form)
    for key, value in fields.items():
        if key not in TEXTS or not isinstance(value, str):
            raise TypeError(f"{form} (key {key!r})")
    copy: Message = {"role": "system" if role == "developer" else role, "content": content}  # OpenAI's newer name
    return copy | ({"tool_calls": as_tool_calls(calls)} if calls else {}) | {k: fields[k] for k in TEXTS if k in fields}


def _text(content: Any) -> str | None:
    """The text of a list of text parts; None if it is not one. TypeError for another part, e.g. an image."""
    if not isinstance(content, Sequence) or not all(isinstance(part, Mapping) for part in content):
        return None
    for part in content:
        kind = str(part.get("type")).removesuffix("_url").removeprefix("input_")
        if kind in ("image", "audio", "video", "file"):
            raise TypeError(f"a message contains {kind}, which is not supported: {NO_IMAGES.format(kind)}")
        if part.get("type") not in PARTS or not isinstance(part.get("text"), str):
            return None
    return "\n".join(part["text"] for part in content)


def as_tool_calls(calls: Any) -> list[dict[str, Any]]:
    """Copy tool calls, with `arguments` as a JSON text; also accepts `{"name", "arguments"}`. TypeError: no call."""
    copies: list[dict[str, Any]] = []
    listed: Sequence[Any] = calls if isinstance(calls, Sequence) and not isinstance(calls, str) else [None]
    for call in listed:
        function = call.get("function", call) if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise TypeError(f'a tool call must be {{"function": {{"name": text, "arguments": text}}}}, got {call!r}')
        arguments = function.get("arguments", {})
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        named = {"name": function["name"], "arguments": text}
        copies.append({"id": str(call.get("id") or ""), "type": "function", "function": named})
    return copies


DEFAULTS = {"tools": [], "tool_choice": "auto", "response_format": {"type": "text"}, "stop": []}
"""Values of parameters that change nothing."""


def as_parameters(request: Parameters) -> Parameters | None:
    """The parameters of a request that are set, as JSON values; None without one. TypeError: an invalid value."""
    parameters = {key: value for key, value in request.items() if value is not None and value != DEFAULTS.get(key)}
    if parameters.get("parallel_tool_calls") is True or "tools" not in parameters:
        parameters.pop("parallel_tool_calls", None)
    if not parameters:
        return None
    for key in parameters.keys() - set(PARAMETERS):
        raise TypeError(f"unknown parameter '{key}': {nearest(key, PARAMETERS)}")
    for key, form, fits in (
        ("tools", "a list of functions in OpenAI's format", _are_tools),
        ("tool_choice", "auto, none, required or a function of `tools`", lambda value: _is_choice(value, parameters)),
        ("response_format", "of type text, json_object or json_schema with a schema", _is_format),
        ("parallel_tool_calls", "true or false", lambda value: value is False),
        ("max_tokens", "a positive whole number", lambda n: _is_number(n) and isinstance(n, int) and n > 0),
        ("temperature", "a number of at least 0", lambda x: _is_number(x) and 0 <= x < math.inf),
        ("top_p", "a number in (0, 1]", lambda x: _is_number(x) and 0 < x <= 1),
        ("stop", "a text or a list of texts", _are_texts),
    ):
        if key in parameters and not fits(parameters[key]):
            raise TypeError(f"'{key}' must be {form}, got {parameters[key]!r:.200}")
    if isinstance(parameters.get("stop"), str):
        parameters["stop"] = [parameters["stop"]]
    copy: Parameters = json.loads(json.dumps(parameters))
    return copy


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_tools(tools: Any) -> bool:
    if not isinstance(tools, Sequence):
        return False
    functions = [tool.get("function") if isinstance(tool, Mapping) else None for tool in tools]
    return all(isinstance(function, Mapping) and isinstance(function.get("name"), str) for function in functions)


def tool_names(parameters: Mapping[str, Any] | None) -> list[str]:
    """Names of the functions in `tools`."""
    return [tool["function"]["name"] for tool in (parameters or {}).get("tools", ())]


def _is_choice(choice: Any, parameters: Mapping[str, Any]) -> bool:
    if isinstance(choice, Mapping):
        return (choice.get("function") or {}).get("name") in tool_names(parameters)
    return choice == "none" or (choice == "required" and "tools" in parameters)


def _is_format(value: Any) -> bool:
    if not isinstance(value, Mapping) or value.get("type") not in ("json_object", "json_schema"):
        return False
    return value["type"] == "json_object" or isinstance((value.get("json_schema") or {}).get("schema"), Mapping)


def _are_texts(value: Any) -> bool:
    texts = [value] if isinstance(value, str) else value
    return isinstance(texts, list) and all(isinstance(text, str) and text for text in texts)


def compared(message: Mapping[str, Any]) -> str:
    """A message as a text that is equal for a reply and for what a client makes of it: without the reasoning, which
    some leave out, without outer white space, and with the arguments of calls as values."""
    kept = {key: value for key, value in message.items() if key not in ("reasoning_content", "tool_calls")}
    if message["role"] == "assistant":
        kept["content"] = message["content"].strip()
    if calls := message.get("tool_calls"):
        kept["tool_calls"] = [(call["id"], call["function"]["name"], _value(call)) for call in calls]
    return json.dumps(kept, sort_keys=True)


def _value(call: Mapping[str, Any]) -> Any:
    try:
        return json_value(call["function"]["arguments"])
    except ValueError:
        return call["function"]["arguments"]


def restored(message: Message, reply: Message) -> Message:
    """A message of a client as the reply that it repeats, with the white space that was sampled; itself if it repeats
    another one, or other reasoning."""
    thoughts, replied = (part.get("reasoning_content", "").strip() for part in (message, reply))
    if message == reply or (thoughts and thoughts != replied) or compared(message) != compared(reply):
        return message
    return {key: value for key, value in reply.items() if key != "reasoning_content" or thoughts}


def message_text(message: Mapping[str, Any]) -> str:
    """A message as one text for people: its reasoning, content and tool calls."""
    lines = [f"(thinks) {message['reasoning_content']}"] if "reasoning_content" in message else []
    calls = [
        f"(calls) {call['function']['name']}({call['function']['arguments']})" for call in message.get("tool_calls", ())
    ]
    content = [message["content"]] if message["content"] or not (lines or calls) else []
    return "\n".join([*lines, *content, *calls])


def json_value(text: str | bytes, most: int = MOST_LEVELS) -> Any:
    """The value of a JSON text of a model or a client.

    Raises:
        ValueError: no JSON (NaN and Infinity are none), or nested deeper than `most` levels.
    """
    value = None
    try:
        value = json.loads(text, parse_constant=_no_number)
        deep = not _is_shallow(value, most)
    except RecursionError:
        deep = True
    if deep:
        raise ValueError(f"more than {most} levels of nested values")
    return value


def _no_number(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def _is_shallow(value: Any, most: int = MOST_LEVELS) -> bool:
    """Whether a value has at most `most` levels; deeper ones could exceed Python's stack in a later step."""
    nested = [value]
    for _ in range(most + 1):
        nested = [part for part in nested if isinstance(part, Mapping | list | tuple)]
        if not nested:
            return True
        nested = [inner for part in nested for inner in (part.values() if isinstance(part, Mapping) else part)]
    return False


def untrained_sampling(
    parameters: Mapping[str, Any], trained_at: Mapping[str, Any], whose: str, policy: str = "NAME"
) -> str | None:
    """Why the parameters of an act cannot be trained: they set another distribution than the update assumes. None if
    they do not. `trained_at`: the `temperature` and `top_p` of the policy."""
    for name, value in trained_at.items():
        if parameters.get(name, value) != value:
            conflict = f"a request sets {name}={parameters[name]:g}, but {whose} is trained at {value:g}"
            why = "the update would use other probabilities than the sampling"
            remedy = f"Remove it, drop it by `ignored=('{name}',)`, or set marl.policies.{policy}.rollout.{name}"
            return f"{conflict}: {why}. {remedy}."
    return None
