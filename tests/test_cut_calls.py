"""Tool calls that the token limit cuts off, answers without thinking under a reasoning parser, and nested JSON."""

import asyncio
import functools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from marl_verl_agents import transport
from marl_verl_tiny.factory import make_bpe_tokenizer

from marl_verl.algo.sampling import drive
from marl_verl.episode import Action, Run, Workflow
from marl_verl.episode.messages import as_tool_calls
from marl_verl.models.parsers import Parsers
from marl_verl.tasks import Task
from tests.chat_client import ACT, STRIPS, client, messages
from tests.tool_formats import ARGUMENTS, FORMATS

SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}, "n": {"type": "integer"}}}
TOOLS = {"tools": [{"type": "function", "function": {"name": "run", "parameters": SCHEMA}}]}
FORCED = {**TOOLS, "tool_choice": "required"}
NAMED = {**TOOLS, "tool_choice": {"type": "function", "function": {"name": "run"}}}
DEEP = '{"a":' * 3000 + "1" + "}" * 3000
WORDS = ["<think>", "</think>", "<seed:think>", "</seed:think>", "<|channel>", "<channel|>", "<｜tool▁calls▁end｜>"]


@functools.cache
def tokenizer() -> Any:
    """One that has all tags of the formats as tokens, as some parsers demand."""
    tags = {tag for texts in FORMATS.values() for text in texts for tag in re.findall(r"<[^<>\s]*>|\[[A-Z_]+\]", text)}
    made = make_bpe_tokenizer(["a"])
    made.add_tokens(sorted({*tags, *WORDS, "[THINK]", "[/THINK]"}))
    made.chat_template = "{% for m in messages %}{{ m.content }}{{ m.tool_calls }}{% endfor %}"
    return made


def parsers(tool: str | None = None, reasoning: str | None = None, **options: Any) -> Parsers:
    return Parsers(tokenizer(), tool, reasoning, "policy 'p'", options)


def cut_after(tool: str, text: str) -> Any:
    return parsers(tool).parse(text, text, TOOLS, cut=True)


@pytest.mark.slow
@pytest.mark.parametrize("tool", FORMATS)
def test_a_call_that_is_cut_off_is_malformed(tool: str) -> None:
    """In a value, in a number, and before the last character; also in a second call."""
    before, call, between, after = FORMATS[tool]
    once = before + call + after
    parsed = parsers(tool).parse(once, once, TOOLS)
    assert [json.loads(made["arguments"]) for made in parsed.calls] == [json.loads(ARGUMENTS)]
    for start in (before, f"Sure. {before}", before + call + between):
        for end in (call.index("/old") + 4, call.rindex("17") + 1, len(call) - 1):
            parsed = cut_after(tool, text := start + call[:end])
            assert (parsed.calls, parsed.text, bool(parsed.malformed)) == ((), text, True)
    assert cut_after(tool, "Nothing to remove: 1 < 2, and [see] it").malformed is None
    assert cut_after(tool, f"{once}\nThen I").calls == ()


@pytest.mark.slow
def test_a_client_tells_the_parsers_how_prompt_and_answer_end(tmp_path: Path) -> None:
    closed = {"enable_thinking": False}  # not a variable of deepseek_r1's parser: the prompt says it
    for template, said, text, reasoning in ((closed, "4", "4", None), ({}, "<think> so </think> 4", "4", "so")):
        policy = client(tmp_path, [said], template=template, custom_chat_template=STRIPS)
        policy.parsers = Parsers(policy.chat.tokenizer, None, "deepseek_r1", "policy 'p'", template)
        action = asyncio.run(policy.answer(messages("user: what is </think> 2"), {}, "r", ACT))
        assert (action.text, action.reasoning) == (text, reasoning)
    policy = client(tmp_path, [[7, 8]], custom_chat_template=STRIPS + "{{ tools }}")
    policy.parsers = parsers("glm45")
    text = "".join(FORMATS["glm45"])[:-9]
    policy.chat.tokenizer.decode = lambda ids, **_: text  # type: ignore[method-assign]
    action = asyncio.run(policy.answer(messages("user: 2"), {}, "r", replace(ACT, parameters=TOOLS)))
    assert (action.stop_reason, action.tool_calls, action.text) == ("length", [], text)
    assert "cut off" in str(action.malformed)


# Through the clients of a workflow


class Asks(Workflow):
    async def run(self, task: Any, team: Any) -> Any:
        tool = {"type": "function", "name": "run", "parameters": SCHEMA}
        ask = {"messages": [{"role": "user", "content": "clean"}]}
        async with httpx.AsyncClient(transport=transport(team, "solver"), base_url="http://team/v1/") as client:
            bodies = [
                ("chat/completions", {**ask, **TOOLS}),
                ("responses", {"input": "clean", "tools": [tool]}),
                ("messages", {**ask, "max_tokens": 9, "tools": [{"name": "run", "input_schema": SCHEMA}]}),
            ]
            chat, response, message = [(await client.post(path, json=body)).json() for path, body in bodies]
            deep = await client.post("chat/completions", content=f'{{"messages": {DEEP}}}')
        return [
            chat["choices"][0]["finish_reason"],
            (response["status"], (response["incomplete_details"] or {}).get("reason")),
            message["stop_reason"],
            deep.status_code,
        ]


CALL = as_tool_calls([{"name": "run", "arguments": ARGUMENTS}])
LIMIT = ["length", ("incomplete", "max_output_tokens"), "max_tokens"]


@pytest.mark.parametrize(
    ("action", "ends"),
    [
        (Action("x", stop_reason="length", malformed="cut"), LIMIT),
        (Action("", stop_reason="stop", tool_calls=CALL), ["tool_calls", ("completed", None), "tool_use"]),
    ],
)
async def test_the_token_limit_is_the_end_in_every_api(action: Action, ends: list[Any]) -> None:
    async def act(_: Any) -> Action:
        return action

    async with Run(Asks(), Task("t", "clean"), ["solver"]) as run:
        await drive(run, act)
    assert run.answer == [*ends, 400]


@pytest.mark.slow
@pytest.mark.parametrize("reasoning", ["qwen3", "deepseek_r1", "seed_oss"])
def test_an_answer_without_thinking_is_the_text(reasoning: str) -> None:
    """The template says so by a variable, or by a reasoning that it closes at the end of the prompt."""
    tag = "seed:think" if reasoning == "seed_oss" else "think"
    closed = f"assistant\n<{tag}>\n\n</{tag}>\n\n"
    off = {"enable_thinking": False, "thinking": False}
    for options, opening in ((off, closed), ({"thinking": True}, closed), (off, "assistant\n")):
        if reasoning == "deepseek_r1" and opening != closed:
            continue  # has no variable
        parsed = parsers(None, reasoning, **options).parse("four", "four", {}, opening)
        assert (parsed.text, parsed.reasoning) == ("four", None)
    thought = f"<{tag}>so</{tag}>four"
    parsed = parsers(None, reasoning, enable_thinking=True, thinking=True).parse(thought, thought, {}, "assistant\n")
    assert (parsed.text, parsed.reasoning) == ("four", "so")


@pytest.mark.slow
@pytest.mark.parametrize("reasoning", [None, "qwen3", "deepseek_r1"])
def test_restricted_answers_have_no_reasoning(reasoning: str | None) -> None:
    form = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}
    answer = '{"command": "</think> <think>"}'
    for tool, said in (("hermes", answer), ("hermes", answer[:-4])):  # also JSON that is cut off is no call
        parsed = parsers(tool, reasoning).parse(said, said, {**TOOLS, **form}, cut=True)
        assert (parsed.text, parsed.reasoning, parsed.malformed) == (said, None, None)
    for asked, text in (
        ({**FORCED, **form}, f'[{{"name": "run", "parameters": {ARGUMENTS}}}]'),
        (NAMED, ARGUMENTS),
        (FORCED, f'[{{"name": "run", "parameters": {ARGUMENTS}}}]'),
    ):
        parsed = parsers("hermes", reasoning).parse(text, text, asked)
        assert [json.loads(made["arguments"]) for made in parsed.calls] == [json.loads(ARGUMENTS)]


@pytest.mark.slow
@pytest.mark.parametrize("deep", [DEEP, DEEP[:15000]])
def test_deeply_nested_calls_are_malformed(deep: str) -> None:
    for asked, text in ((NAMED, deep), (FORCED, f'[{{"name": "run", "parameters": {deep}}}]')):
        parsed = parsers("hermes").parse(text, text, asked)
        assert (parsed.text, parsed.calls, bool(parsed.malformed)) == (text, (), True)
    for tool in ("hermes", "llama3_json", "mistral", "qwen3_coder"):
        text = "".join(FORMATS[tool]).replace(ARGUMENTS, deep).replace("17", deep)
        parsed = parsers(tool).parse(text, text, TOOLS)
        assert not any(deep in made["arguments"] for made in parsed.calls)
