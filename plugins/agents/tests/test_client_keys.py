"""Bodies of requests: a key that would change a prompt, a sampling or a response is honoured or refused by its name."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from marl_verl_agents import transport
from marl_verl_testing import ScriptedPolicy
from marl_verl_testing.scripted import ScriptedContext

from marl_verl.algo.sampling import drive
from marl_verl.episode import Run, Workflow
from marl_verl.tasks import Task

TASK, USER = Task("t", "2 + 2?"), {"role": "user", "content": "2 + 2?"}
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
    workflow = Posts(bodies, ignored)

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
    assert not [(body, reply) for body, reply in zip(bodies, found, strict=True) if reply[0] != 400]
    assert not acts
