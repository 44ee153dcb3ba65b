"""Messages in the chat format of OpenAI, and the parameters of a request beside them, as plain JSON values.

    {"role": "user", "content": "2 + 2?"}
    {"role": "assistant", "content": "", "tool_calls": [{"id": ..., "type": "function", "function": {"name": "add",
     "arguments": "{\\"a\\": 2}"}}], "reasoning_content": "I should add."}
    {"role": "tool", "content": "4", "tool_call_id": ..., "name": "add"}

The content is always a text: text parts are joined by line breaks, as vLLM does, and a missing content is "".
"""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from marl_verl.errors import nearest

Message = dict[str, Any]
"""A `role` and a `content`, both texts; optional `name`, `reasoning_content`, `tool_calls` and `tool_call_id`."""

Observation = tuple[Message, ...]

Seen = str | Sequence[Mapping[str, Any]]
"""An observation as a workflow may give it: a text (one user message) or chat messages."""

Parameters = dict[str, Any]  # of a request beside its messages: name, one of `PARAMETERS`, -> value
TEXTS = ("name", "tool_call_id", "reasoning_content")  # optional keys with a text
PARTS = ("text", "input_text", "output_text")  # types of text parts


def as_observation(observation: str | Sequence[Mapping[str, Any]]) -> Observation:
    """Copy an observation as chat messages; a text becomes one user message. TypeError: neither, or no message."""
    if isinstance(observation, str):
        return ({"role": "user", "content": observation},)
    if not isinstance(observation, Sequence) or not observation:
        raise TypeError(f"an observation must be a text or a list of messages, got {observation!r}")
    return tuple(as_message(message) for message in observation)


def as_message(message: Any) -> Message:
    """Copy a message. TypeError if it is not in the chat format, or contains something else than text and calls."""
    given = message if isinstance(message, Mapping) else {"": message}  # e.g. a text
    fields = {key: value for key, value in given.items() if value is not None}
    calls = fields.pop("tool_calls", None) or []
    role, content = fields.pop("role", None), fields.pop("content", "" if calls else None)
    content = content if isinstance(content, str) else _text(content)
    texts = {key: fields.pop(key) for key in TEXTS if key in fields}
    if fields or not all(isinstance(text, str) for text in (role, content, *texts.values())):
        raise TypeError(f'a message must be {{"role": text, "content": text}}, got {message!r}')
    copy: Message = {"role": "system" if role == "developer" else role, "content": content}  # OpenAI's newer name
    return copy | ({"tool_calls": as_tool_calls(calls)} if calls else {}) | texts


def _text(content: Any) -> str | None:
    """The text of a list of text parts; None if it is not one. TypeError for another part, e.g. an image."""
    if not isinstance(content, Sequence) or not all(isinstance(part, Mapping) for part in content):
        return None
    for part in content:
        if part.get("type") not in PARTS:
            kind = str(part.get("type")).removesuffix("_url").removeprefix("input_")
            why = f"a run trains on token ids, and rows have no pixel values: describe the {kind} in text"
            raise TypeError(f"a message contains {kind}, which is not supported: {why}")
    return "\n".join(part["text"] for part in content)


def as_tool_calls(calls: Sequence[Any]) -> list[dict[str, Any]]:
    """Copy tool calls, with `arguments` as a JSON text; also accepts `{"name", "arguments"}`."""
    copies: list[dict[str, Any]] = []
    for call in calls:
        function = call.get("function", call)
        arguments = function.get("arguments", {})
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        named = {"name": function["name"], "arguments": text}
        copies.append({"id": str(call.get("id") or ""), "type": "function", "function": named})
    return copies


class _Named(msgspec.Struct):
    name: str


class _Function(msgspec.Struct):
    function: _Named


class _AnyJson(msgspec.Struct, tag_field="type", tag="json_object"):
    pass


class _Schema(msgspec.Struct):
    schema: dict[str, Any]


class _JsonSchema(msgspec.Struct, tag_field="type", tag="json_schema"):
    json_schema: _Schema


PARAMETERS: dict[str, Any] = {
    "tools": list[_Function],
    "tool_choice": Literal["none", "required"] | _Function,
    "parallel_tool_calls": bool,
    "response_format": _AnyJson | _JsonSchema,
    "stop": list[Annotated[str, Meta(min_length=1)]],
    "max_tokens": Annotated[int, Meta(gt=0)],
    "temperature": Annotated[float, Meta(ge=0)],
    "top_p": Annotated[float, Meta(gt=0, le=1)],
}
"""Name of a parameter, in OpenAI's format -> its type."""
DEFAULTS = {"tools": [], "tool_choice": "auto", "response_format": {"type": "text"}, "stop": []}
"""Values of parameters that change nothing."""


def as_parameters(request: Parameters) -> Parameters | None:
    """The parameters of a request that are set, as JSON values; None without one. TypeError or ValueError: invalid."""
    asked = {key: value for key, value in request.items() if value is not None and value != DEFAULTS.get(key)}
    if asked.get("parallel_tool_calls") is True or "tools" not in asked:
        asked.pop("parallel_tool_calls", None)
    if not asked:
        return None
    if isinstance(asked.get("stop"), str):
        asked["stop"] = [asked["stop"]]
    parameters: Parameters = json.loads(json.dumps(asked, allow_nan=False))
    for key, value in parameters.items():
        if key not in PARAMETERS:
            raise TypeError(f"unknown parameter '{key}': {nearest(key, PARAMETERS)}")
        try:
            msgspec.convert(value, PARAMETERS[key])
        except msgspec.ValidationError as error:
            raise TypeError(f"'{key}': {error}, got {value!r:.200}") from error
    choice, names = parameters.get("tool_choice", "none"), tool_names(parameters)
    if choice != "none" and (not names if choice == "required" else choice["function"]["name"] not in names):
        raise TypeError(f"'tool_choice' must be a function of `tools`, got {choice!r:.200}")
    return parameters


def tool_names(parameters: Mapping[str, Any] | None) -> list[str]:
    """Names of the functions in `tools`."""
    return [tool["function"]["name"] for tool in (parameters or {}).get("tools", ())]


def call_arguments(call: Mapping[str, Any]) -> Any:
    """The arguments of a tool call as values; their text if it is no JSON."""
    try:
        return json_value(call["function"]["arguments"])
    except ValueError:
        return call["function"]["arguments"]


def message_text(message: Mapping[str, Any]) -> str:
    """A message as one text for people: its reasoning, content and tool calls."""
    lines = [f"(thinks) {message['reasoning_content']}"] if "reasoning_content" in message else []
    functions = [call["function"] for call in message.get("tool_calls", ())]
    calls = [f"(calls) {function['name']}({function['arguments']})" for function in functions]
    content = [message["content"]] if message["content"] or not (lines or calls) else []
    return "\n".join([*lines, *content, *calls])


def json_value(text: str | bytes) -> Any:
    """The value of a JSON text of a model or a client. ValueError: no JSON (NaN and Infinity are none)."""
    try:
        return json.loads(text, parse_constant=_no_number)
    except RecursionError as error:
        raise ValueError("too many levels of nested values") from error


def _no_number(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def untrained_sampling(
    parameters: Mapping[str, Any], trained_at: Mapping[str, Any], whose: str, policy: str = "NAME"
) -> str | None:
    """Why the parameters of an act cannot be trained: they set another distribution than the update assumes. None if
    they do not. `trained_at`: the `temperature` and `top_p` of the policy."""
    for name, value in trained_at.items():
        if parameters.get(name, value) != value:
            conflict = f"a request sets {name}={parameters[name]:g}, but {whose} is trained at {value:g}"
            remedy = f"Remove it, drop it by `ignored=('{name}',)`, or set marl.policies.{policy}.rollout.{name}"
            return f"{conflict}: the update would use other probabilities than the sampling. {remedy}."
    return None
