"""Bodies of requests: a key that would change a prompt, a sampling or a response is honoured or refused by its name."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
import httpx
import pytest
from marl_verl_agents import transport
from marl_verl_testing import ScriptedPolicy
from marl_verl_testing.scripted import ScriptedContext

from marl_verl.algo.sampling import Independent, drive
from marl_verl.episode import Run, Workflow
from marl_verl.tasks.base import Task

TASK = Task("t", "2 + 2?")
USER = {"role": "user", "content": "2 + 2?"}
FUNCTION = {"name": "add", "parameters": {"type": "object"}}
CHAT, RESPONSES, MESSAGES = APIS = ("/v1/chat/completions", "/v1/responses", "/v1/messages")
LEAST: dict[str, dict[str, Any]] = {
    CHAT: {"model": "m", "messages": [USER]},
    RESPONSES: {"model": "m", "input": [USER]},
    MESSAGES: {"model": "m", "messages": [USER], "max_tokens": 9},
}
TOOLS: dict[str, Any] = {
    CHAT: [{"type": "function", "function": FUNCTION}],
    RESPONSES: [{"type": "function", **FUNCTION}],
    MESSAGES: [{"name": "add", "input_schema": {"type": "object"}}],
}
TWO = {"content": "", "tool_calls": [{"name": "add", "arguments": {"a": n}} for n in (1, 2)]}

ANYWHERE = {  # vLLM's, and those of other servers
    **{"chat_template_kwargs": {"enable_thinking": False}, "top_k": 1, "min_p": 0.5, "repetition_penalty": 1.3},
    **{"ignore_eos": True, "add_generation_prompt": False, "structured_outputs": {"choice": ["yes"]}, "echo": True},
    **{"skip_special_tokens": False, "logit_bias": {"1": 5}, "logprobs": True, "prompt_logprobs": 0, "temprature": 1},
}
OF_ONE = {
    CHAT: {"reasoning_effort": "none", "verbosity": "low", "modalities": ["audio"]},
    RESPONSES: {"reasoning": {"effort": "low"}, "text": {"verbosity": "low"}, "truncation": "auto", "n": 2},
    MESSAGES: {"thinking": {"type": "enabled"}, "output_config": {"effort": "low"}, "tool_choice": {"type": "tools"}},
}
HARMLESS = {
    **{"user": "me", "metadata": {"a": "b"}, "seed": 3, "store": True, "service_tier": "auto", "priority": 1},
    **{"safety_identifier": "x", "prompt_cache_key": "x", "request_id": "r", "top_k": -1, "min_p": 0},
    **{"repetition_penalty": 1.0, "frequency_penalty": 0.0, "logprobs": False, "add_generation_prompt": True},
    **{"chat_template_kwargs": {}, "ignore_eos": False, "stop_token_ids": [], "documents": None, "tools": [], "n": 1},
}


class Posts(Workflow):
    """Sends bodies to the transport; its answer is (status, body) of each."""

    bodies: Any
    ignored: Any

    async def run(self, task: Task, team: Any) -> Any:
        through = transport(team, "solver")
        through._ignored = self.ignored
        found = []
        async with httpx.AsyncClient(transport=through) as client:
            for path, body in [*self.bodies, (CHAT, LEAST[CHAT])]:
                content = body if isinstance(body, bytes) else json.dumps(body).encode()
                reply = await client.post(f"http://any{path}", content=content)
                found.append((reply.status_code, reply.json()))
        return found


def post(*bodies: tuple[str, Any], replies: Any = "4", ignored: Any = ()) -> tuple[list[Any], list[Any]]:
    """([(status, body)], acts) of requests."""
    workflow = Posts.__new__(Posts)
    object.__setattr__(workflow, "bodies", bodies)
    object.__setattr__(workflow, "ignored", ignored)

    async def go() -> Any:
        context = ScriptedContext(workflow, TASK, ScriptedPolicy({"solver": replies}))
        async with Run(workflow, TASK, ["solver"]) as run:
            await drive(run, lambda act: context.act(act, 0))
        return run.answer[:-1], [act for act, _ in run.turns][:-1]

    return asyncio.run(go())


@pytest.mark.parametrize("path", APIS)
def test_a_key_with_influence_is_refused_by_its_name(path: str) -> None:
    keys = ANYWHERE | OF_ONE[path]
    found, acts = post(*[(path, LEAST[path] | {key: value}) for key, value in keys.items()])
    assert not acts
    for key, (status, body) in zip(keys, found, strict=True):
        assert status == 400, key
        assert key in body["error"]["message"]
        assert "x-should-retry" not in body


@pytest.mark.parametrize("path", APIS)
def test_a_key_without_influence_is_accepted(path: str) -> None:
    ((status, body),), (act,) = post((path, LEAST[path] | HARMLESS))
    assert status == 200, body
    assert act.parameters == ({"max_tokens": 9} if path == MESSAGES else None)


@pytest.mark.parametrize("path", APIS)
def test_an_ignored_key_is_dropped(path: str) -> None:
    ignored = ("top_k", "temprature", "verbosity", "effort", "thinking", "temperature", "max_tokens")
    keys = {"top_k": 3, "temprature": 1, "temperature": 0.5, **({"thinking": {}} if path == MESSAGES else {})}
    keys |= {"text": {"verbosity": "low"}, "reasoning": {"effort": "low"}} if path == RESPONSES else {}
    ((status, body),), (act,) = post((path, LEAST[path] | keys), ignored=ignored)
    assert status == 200, body
    assert act.parameters is None


@pytest.mark.parametrize("path", APIS)
def test_no_last_message_is_silently_taken_for_a_whole_one(path: str) -> None:
    """Anthropic's API continues it, which is refused; OpenAI's begin a new message, unless a key of vLLM is set."""
    key = "input" if path == RESPONSES else "messages"
    begun = LEAST[path] | {key: [USER, {"role": "assistant", "content": "The answer is ("}]}
    others = [{"continue_final_message": True}, {"add_generation_prompt": False, "continue_final_message": True}]
    found, acts = post(*[(path, begun | keys) for keys in [{}, *others]])
    assert [status for status, _ in found] == [400 if path == MESSAGES else 200, 400, 400]
    if path == MESSAGES:
        assert "(prefill) is not supported" in found[0][1]["error"]["message"]
    else:
        assert [message["role"] for message in acts[0].observation] == ["user", "assistant"]
    prefix = {"role": "assistant", "content": "(", "prefix": True}  # of Mistral and DeepSeek
    if path == CHAT:
        assert [status for status, _ in post((path, LEAST[path] | {key: [USER, prefix]}))[0]] == [400]


def test_without_parallel_calls_only_the_first_one_is_made() -> None:
    chat = LEAST[CHAT] | {"tools": TOOLS[CHAT]}
    claude = LEAST[MESSAGES] | {"tools": TOOLS[MESSAGES]}
    alone = {"type": "auto", "disable_parallel_tool_use": True}
    bodies = [chat, chat | {"parallel_tool_calls": False}, claude, claude | {"tool_choice": alone}]
    found, acts = post(*zip((CHAT, CHAT, MESSAGES, MESSAGES), bodies, strict=True), replies=TWO)
    assert [len(body["choices"][0]["message"]["tool_calls"]) for _, body in found[:2]] == [2, 1]
    assert [sum(block["type"] == "tool_use" for block in body["content"]) for _, body in found[2:]] == [2, 1]
    assert [act.parameters.get("parallel_tool_calls") for act in acts] == [None, False, None, False]
    ids = [body["choices"][0]["message"]["tool_calls"][0]["id"] for _, body in found[:2]]
    assert acts[1].parameters["tools"] == TOOLS[CHAT]
    assert len(set(ids)) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_anthropics_stop_sequences_are_named(stream: bool) -> None:
    texts = {
        "4 END more": ("4 ", "stop_sequence", "END"),
        "4": ("4", "end_turn", None),
        "a|b": ("a", "stop_sequence", "|"),
    }

    class Asks(Workflow):
        async def run(self, task: Task, team: Any) -> Any:
            http = anthropic.DefaultAsyncHttpxClient(transport=transport(team, "solver"))
            client = anthropic.AsyncAnthropic(http_client=http, api_key="none", base_url="http://any")
            asked: Any = {"model": "m", "max_tokens": 9, "messages": [USER], "stop_sequences": ["END", "|"]}
            found = []
            for _ in texts:
                if stream:
                    async with client.messages.stream(**asked) as events:
                        message = await events.get_final_message()
                else:
                    message = await client.messages.create(**asked)
                found.append([message.content[0].text, message.stop_reason, message.stop_sequence])
            return found

    async def go() -> Any:
        context = ScriptedContext(Asks(), TASK, ScriptedPolicy({"solver": [*texts]}))
        return await Independent(1).sample(context)

    sample = asyncio.run(go())
    assert not sample.failures, sample.failures[0].trace
    (episode,) = sample.episodes
    assert [tuple(each) for each in episode.answer] == [*texts.values()]


DEEP = 20_000
MALFORMED: dict[str, list[Any]] = {
    CHAT: [
        *({"messages": value} for value in (None, 5, "x", {}, [], [5], [{"role": 1}], [{"content": "x"}])),
        *({"tools": value} for value in (5, ["x"], [{"function": {"name": 5}}])),
        *({"response_format": {"type": "json_schema", "json_schema": 5}}, {"n": 65}, {"n": 1.5}, {"stop": [5]}),
        *({"temperature": value} for value in ("x", True, -1)),
        *({"max_tokens": 0}, {"tools": TOOLS[CHAT], "tool_choice": {"function": "add"}}),
    ],
    RESPONSES: [
        *({"input": value} for value in (None, 5, [], [5], [{"type": "x"}], [{"role": "user", "content": [5]}])),
        *({"text": 5}, {"text": {"format": {"type": "x"}}}, {"tool_choice": {"type": "x"}}, {"include": 5}),
        *({"tools": value} for value in (5, [5], [{"type": "function"}])),
        {"input": [USER, {"type": "reasoning", "content": [{"type": "reasoning_text"}]}]},
    ],
    MESSAGES: [
        *({"messages": value} for value in (None, 5, {}, [], [5], [{"role": "user", "content": 5}])),
        *({"messages": [{"role": "user", "content": [value]}]} for value in (5, {}, {"type": "image"})),
        *({"tool_choice": 5}, {"tools": [5]}, {"tools": [{"name": 5}]}, {"output_config": {"format": 5}}),
        *({"system": 5}, {"max_tokens": "x"}, {"stop_sequences": 5}),
    ],
}


@pytest.mark.parametrize("path", APIS)
def test_a_malformed_body_is_400(path: str) -> None:
    anything = [b"", b"{", b"[]", b"null", b"5", b'"x"', b"\xff", b"[" * DEEP + b"]" * DEEP]
    anything += [b'{"a":' * DEEP + b"1" + b"}" * DEEP, b"[" * 500 + b"]" * 500]
    whole = json.dumps(LEAST[path]).encode()
    anything += [whole.replace(b"2 + 2?", half) for half in (rb"\ud83d", rb"\uDC00")]
    anything += [whole[:-1] + b', "temperature": %b}' % number for number in (b"NaN", b"Infinity", b"1e999")]
    bodies = [*anything, *(LEAST[path] | keys for keys in MALFORMED[path])]
    found, acts = post(*[(path, body) for body in bodies])
    wrong = [(body, reply) for body, reply in zip(bodies, found, strict=True) if reply[0] != 400]
    assert not wrong
    assert not acts
