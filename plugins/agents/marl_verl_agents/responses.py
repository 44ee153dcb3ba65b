"""OpenAI's Responses API: a request body as the arguments of an act, and an action as a response, without a client."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from marl_verl.episode.messages import Message
from marl_verl.episode.turn import Action
from marl_verl_agents.chat_completions import Request, RequestError, check_keys, functions, request, usage

KEYS = {"temperature": "temperature", "top_p": "top_p", "stop": "stop", "max_output_tokens": "max_tokens"}
TOOL_KEYS = {key: key for key in ("name", "description", "parameters", "strict")}


def read(body: Mapping[str, Any]) -> Request:
    """Read the body of a request to /responses. RequestError if it is not supported."""
    check_keys(body, {*KEYS, "input", "instructions", "tools", "tool_choice", "text", "reasoning", "include"})
    if "message.output_text.logprobs" in (body.get("include") or ()):
        raise RequestError("'include' of log-probabilities is not supported", "include")
    text, choice, items = body.get("text") or {}, body.get("tool_choice"), body["input"]
    check_keys(text, {"format"}, "text.")
    # the response has the whole reasoning
    check_keys(body.get("reasoning") or {}, {"summary", "generate_summary"}, "reasoning.")
    messages: list[Message] = [{"role": "system", "content": body["instructions"]}] if body.get("instructions") else []
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    for item in items:
        _add(messages, item)
    if isinstance(choice, Mapping) and choice.get("type") == "function":
        choice = {"type": "function", "function": {"name": choice["name"]}}
    form = text.get("format")
    if form is not None and form.get("type") == "json_schema":
        form = {"type": "json_schema", "json_schema": {key: value for key, value in form.items() if key != "type"}}
    tools = functions(body.get("tools"), TOOL_KEYS)
    return request(body, messages, KEYS, tools=tools, tool_choice=choice, response_format=form)


def _add(messages: list[Message], item: Any) -> None:
    """Add an input item; the calls, the text and the reasoning of one answer are one message."""
    kind = item.get("type", "message") if isinstance(item, Mapping) else None
    last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    if kind == "message":
        message = {key: item[key] for key in ("role", "content") if key in item}
        if message.get("role") == "assistant" and last is not None and not last["content"]:
            last["content"] = message["content"]
        else:
            messages.append(message)
    elif kind == "function_call":
        named = {"name": item.get("name"), "arguments": item.get("arguments", "{}")}
        if last is None:
            messages.append(last := {"role": "assistant", "content": ""})
        last.setdefault("tool_calls", []).append({"id": item.get("call_id"), "type": "function", "function": named})
    elif kind == "function_call_output":
        messages.append({"role": "tool", "content": item.get("output"), "tool_call_id": item.get("call_id")})
    elif kind == "reasoning":
        text = "\n".join(part["text"] for part in (item.get("content") or item.get("summary") or ()))
        if text:
            messages.append({"role": "assistant", "content": "", "reasoning_content": text})
    else:
        raise RequestError(f"an input item of type {kind!r} is not supported", "input")


def response(id: str, asked: Request, actions: Sequence[Action]) -> dict[str, Any]:
    """A response with the action's reasoning, text and function calls as output items."""
    (action,), output = actions, list[dict[str, Any]]()
    cut = action.stop_reason == "length"
    status = "incomplete" if cut else "completed"
    if action.reasoning:
        thought = {"type": "reasoning_text", "text": action.reasoning}
        output.append({"type": "reasoning", "id": f"rs_{id}", "summary": [], "content": [thought]})
    if action.text or not action.tool_calls:
        said = {"type": "output_text", "text": action.text, "annotations": [], "logprobs": []}
        message = {"type": "message", "id": f"msg_{id}", "role": "assistant", "status": status}
        output.append({**message, "content": [said]})
    for call in action.tool_calls:
        made = {"type": "function_call", "id": f"fc_{call['id']}", "call_id": call["id"], "status": "completed"}
        output.append({**made, **call["function"]})
    before, sampled = usage(actions)
    return {
        **{"id": f"resp_{id}", "object": "response", "created_at": 0, "model": asked.model, "output": output},
        **{"error": None, "status": status, "incomplete_details": {"reason": "max_output_tokens"} if cut else None},
        **{"instructions": None, "metadata": {}, "parallel_tool_calls": True, "tools": [], "tool_choice": "auto"},
        **{key: asked.parameters.get(key) for key in ("temperature", "top_p")},
        "usage": {
            **{"input_tokens": before, "output_tokens": sampled, "total_tokens": before + sampled},
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }


def events(whole: Mapping[str, Any], asked: Request) -> Iterator[dict[str, Any]]:
    """The response as the events of a stream, each item at once."""
    for number, event in enumerate(_events(whole)):
        yield {**event, "sequence_number": number}


def _events(whole: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    empty = {**whole, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield {"type": "response.created", "response": empty}
    for index, item in enumerate(whole["output"]):
        place, kind = {"output_index": index, "item_id": item["id"]}, item["type"]
        begun: dict[str, Any] = {"arguments": ""} if kind == "function_call" else {"content": []}
        yield {"type": "response.output_item.added", "output_index": index, "item": {**item, **begun}}
        if kind == "function_call":
            name = "response.function_call_arguments"
            yield {"type": f"{name}.delta", **place, "delta": item["arguments"]}
            yield {"type": f"{name}.done", **place, "arguments": item["arguments"], "name": item["name"]}
        elif kind == "message":
            part, place = item["content"][0], {**place, "content_index": 0}
            yield {"type": "response.content_part.added", **place, "part": {**part, "text": ""}}
            yield {"type": "response.output_text.delta", **place, "delta": part["text"], "logprobs": []}
            yield {"type": "response.output_text.done", **place, "text": part["text"], "logprobs": []}
            yield {"type": "response.content_part.done", **place, "part": part}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": f"response.{whole['status']}", "response": dict(whole)}
