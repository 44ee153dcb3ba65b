"""Anthropic's Messages API: a request body as the arguments of an act, and an action as a response."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from marl_verl.episode.messages import Message
from marl_verl.episode.turn import Action
from marl_verl_agents.chat_completions import Request, RequestError, check_keys, functions, request, usage

KEYS = {"max_tokens": "max_tokens", "temperature": "temperature", "top_p": "top_p", "stop_sequences": "stop"}
TOOL_KEYS = {"name": "name", "input_schema": "parameters", "description": "description", "strict": "strict"}
CHOICES = {"auto": "auto", "any": "required", "none": "none"}
ENDS = {"length": "max_tokens", "tool_calls": "tool_use"}


def read(body: Mapping[str, Any]) -> Request:
    """Read the body of a request to /messages. RequestError if it is not supported."""
    check_keys(body, {*KEYS, "messages", "system", "tools", "tool_choice"})
    messages: list[Message] = [{"role": "system", "content": body["system"]}] if body.get("system") else []
    for message in body["messages"]:
        _add(messages, message)
    choice = body.get("tool_choice") or {}
    check_keys(choice, {"type", "name", "disable_parallel_tool_use"}, "tool_choice.")
    kind = choice.get("type") if choice else "auto"
    if kind not in (*CHOICES, "tool"):
        raise RequestError(f"'tool_choice' cannot be of type {kind!r:.60}", "tool_choice")
    if messages and messages[-1]["role"] == "assistant":
        why = "the last message is the assistant's, and continuing it (prefill) is not supported: end with another role"
        raise RequestError(why, "messages")
    tools, parallel = functions(body.get("tools"), TOOL_KEYS), not choice.get("disable_parallel_tool_use")
    chosen = CHOICES.get(kind, {"type": "function", "function": {"name": choice.get("name")}})
    return request(body, messages, KEYS, tools=tools, tool_choice=chosen, parallel_tool_calls=parallel)


def _add(messages: list[Message], message: Mapping[str, Any]) -> None:
    """Add a message; each tool result becomes a message of its own."""
    content = message.get("content")
    if not isinstance(content, list):
        messages.append({"role": message.get("role"), "content": content})
        return
    text: list[Any] = []
    turn: Message = {"role": message.get("role"), "content": text}
    for block in content:
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind == "tool_use":
            call = {"name": block.get("name"), "arguments": json.dumps(block.get("input") or {}, ensure_ascii=False)}
            turn.setdefault("tool_calls", []).append({"id": block.get("id"), "type": "function", "function": call})
        elif kind == "tool_result":
            result = block.get("content") or ""
            if block.get("is_error"):  # a message of OpenAI's API has no such key
                parts = [{"type": "text", "text": result}] if isinstance(result, str) else result
                result = [{"type": "text", "text": "Error:"}, *parts]
            messages.append({"role": "tool", "content": result, "tool_call_id": block.get("tool_use_id")})
        elif kind == "thinking":
            turn["reasoning_content"] = block.get("thinking", "")
        else:
            text.append(block)
    if text or set(turn) > {"role", "content"}:
        messages.append({**turn, "content": text or ""})


def response(id: str, asked: Request, actions: Sequence[Action]) -> dict[str, Any]:
    """A message with the action's reasoning, text and tool calls as content blocks."""
    (action,), content = actions, list[dict[str, Any]]()
    if action.reasoning:
        content.append({"type": "thinking", "thinking": action.reasoning, "signature": ""})
    if action.text or not action.tool_calls:
        content.append({"type": "text", "text": action.text, "citations": None})
    for call in action.tool_calls:
        made = {"type": "tool_use", "id": call["id"], "name": call["function"]["name"]}
        content.append({**made, "input": json.loads(call["function"]["arguments"])})
    before, sampled = usage(actions)
    why = "tool_calls" if action.tool_calls and action.stop_reason != "length" else str(action.stop_reason)
    stop = action.stop if action.stop in asked.parameters.get("stop", ()) and not action.tool_calls else None
    return {
        **{"id": f"msg_{id}", "type": "message", "role": "assistant", "model": asked.model, "content": content},
        **{"stop_reason": "stop_sequence" if stop else ENDS.get(why, "end_turn"), "stop_sequence": stop},
        "usage": {"input_tokens": before, "output_tokens": sampled},
    }


def events(whole: Mapping[str, Any], asked: Request) -> Iterator[dict[str, Any]]:
    """The message as the events of a stream, each block at once."""
    yield {"type": "message_start", "message": {**whole, "content": [], "stop_reason": None, "stop_sequence": None}}
    for index, block in enumerate(whole["content"]):
        if block["type"] == "tool_use":
            begun: dict[str, Any] = {"input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        else:
            kind = block["type"]
            begun, delta = {kind: ""}, {"type": f"{kind}_delta", kind: block[kind]}
        yield {"type": "content_block_start", "index": index, "content_block": {**block, **begun}}
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    end = {key: whole[key] for key in ("stop_reason", "stop_sequence")}
    yield {"type": "message_delta", "delta": end, "usage": whole["usage"]}
    yield {"type": "message_stop"}


def error_body(error: RequestError) -> dict[str, Any]:
    """A refused request in Anthropic's format."""
    kind = {404: "not_found_error", 410: "not_found_error", 500: "api_error"}.get(error.status, "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": str(error)}}
