"""Messages in the chat format, tools of an act, and the parsers of what a model samples."""

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest
from marl_verl_endpoints.client import EndpointClient
from marl_verl_testing import ScriptedPolicy, check_workflow
from marl_verl_tiny.factory import make_tokenizer

from marl_verl.algo.sampling import drive
from marl_verl.algo.sampling.context import TaskContext
from marl_verl.backend.rollout.context import PolicySamplingContext, WorkerContext
from marl_verl.episode import Act, Action, Run, Workflow, replay
from marl_verl.episode.codec import decode_journal, encode_journal
from marl_verl.episode.messages import as_observation
from marl_verl.episode.turn import with_ids
from marl_verl.errors import MarlError
from marl_verl.models.parsers import FAMILIES, Parsers, structured_outputs
from marl_verl.tasks import Task, TaskSet
from marl_verl.team import AgentConfig, Endpoint, Sampling
from tests.chat_client import Server, client
from tests.tool_formats import tool_parsers

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
ADD = {"type": "function", "function": {"name": "add", "description": "adds", "parameters": SCHEMA}}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
TASK = Task("t", "2 + 2?")
TEMPLATE = (  # a call as Qwen and Hermes write it
    "{% if tools %}{{ '[tools] ' ~ tools | tojson ~ ' ' }}{% endif %}"
    "{% for m in messages %}{{ '[' ~ m.role ~ '] ' ~ m.content ~ ' ' }}"
    "{% for c in m.tool_calls or [] %}{{ '<tool_call> ' ~ c.function.name ~ ' ' ~ c.function.arguments.a }}"
    "{{ ' </tool_call> ' }}{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '[assistant] ' }}{% endif %}"
)


class UsesTool(Workflow):
    """Adds by a tool, as agents of any framework do."""

    async def run(self, task: Any, team: Any) -> str:
        messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": task.prompt}]}]
        while True:
            action = await team["solver"].act(messages, tools=[ADD], max_tokens=8)
            messages.append(action.message)
            if not action.tool_calls:
                return action.text
            for call in action.tool_calls:
                found = await team["solver"].call(double, json.loads(call["function"]["arguments"])["a"])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": str(found)})


def double(value: int) -> int:
    return 2 * value


SCRIPT = ScriptedPolicy({"solver": [{"tool_calls": [{"name": "add", "arguments": {"a": 2}}]}, "4"]})


def test_a_workflow_with_a_tool_is_replayable_and_stores_its_messages() -> None:
    run = check_workflow(UsesTool(), TASK, SCRIPT, seconds=300)
    assert run.answer == "4"
    first, second = (act for act, _ in run.turns)
    assert first.parameters == {"tools": [ADD], "max_tokens": 8}
    call = run.turns[0][1].tool_calls[0]
    assert second.observation[1:] == (
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "4", "tool_call_id": call["id"]},
    )
    assert decode_journal(json.loads(json.dumps(encode_journal(run.journal)))) == run.journal


def test_an_image_is_refused() -> None:
    for part in ({"type": "image", "image": "a.png"}, {"type": "image_url", "image_url": {"url": "data:"}}):
        with pytest.raises(TypeError, match=r"contains image, which is not supported: .*describe the image in text"):
            as_observation([{"role": "user", "content": [{"type": "text", "text": "What?"}, part]}])


WORDS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "two", "so"]


def parsers(template: str = TEMPLATE, **names: Any) -> Parsers:
    tokenizer = make_tokenizer(WORDS)
    tokenizer.chat_template = template
    return Parsers(tokenizer, names.get("tool"), names.get("reasoning"), "policy 'p'")


@pytest.mark.slow
def test_calls_are_parsed_by_vllms_parser_of_the_template() -> None:
    found = parsers()
    assert found.tool == "hermes"
    asked = {"tools": [ADD]}

    def parse(text: str, given: Any = asked) -> Any:
        return found.parse(text, text, given)

    call = '<tool_call> {"name": "add", "arguments": {"a": 2}} </tool_call>'
    both = parse(f"so {call} {call}")
    assert (both.text, both.calls, both.malformed) == ("so", ({"name": "add", "arguments": '{"a": 2}'},) * 2, None)
    assert parse("so 2").text == "so 2"
    for wrong, why in (
        (call.replace("}}", "}"), "a tool call that cannot be parsed"),
        (call.replace("add", "sub"), "a call of unknown tool 'sub'"),
        (call.replace('{"a": 2}', "[2]"), "arguments that are no JSON object"),
    ):
        assert (parse(wrong).text, parse(wrong).calls) == (wrong, ())
        assert why in parse(wrong).malformed
    assert parse(call, {"tools": [ADD], "tool_choice": "none"}).text == call
    named = {"tools": [ADD], "tool_choice": {"type": "function", "function": {"name": "add"}}}
    assert parse('{"a"', named).malformed == "a tool call that is no complete JSON"
    with pytest.raises(MarlError, match=r"chat template of no known family .*set tool_parser"):
        parsers("{{ messages }}").parse(call, call, asked)


@pytest.mark.slow
def test_structured_outputs_are_a_schema_without_free_white_space() -> None:
    from xgrammar.testing import _is_grammar_accept_string as accepts

    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    answer = structured_outputs({"response_format": wanted}).grammar
    assert accepts(answer, json.dumps({"a": 2}))
    assert not accepts(answer, '{\n"a": 2}')  # a model could go on with line breaks for ever
    assert not accepts(answer, json.dumps({"b": 2}))
    anything = structured_outputs({"response_format": {"type": "json_object"}}).grammar
    assert accepts(anything, json.dumps({"b": [1, {"c": None}]}))
    assert not accepts(anything, "[1]")
    forced = structured_outputs({"tools": [ADD], "tool_choice": "required"}).grammar
    assert accepts(forced, json.dumps([{"name": "add", "parameters": {"a": 2}}]))
    assert structured_outputs({"tools": [ADD], "tool_choice": "required", "response_format": wanted}).grammar == forced
    named = {"type": "function", "function": {"name": "add"}}
    assert accepts(structured_outputs({"tools": [ADD], "tool_choice": named}).grammar, json.dumps({"a": 2}))
    assert structured_outputs({"tools": [ADD]}) is None


def test_every_family_has_a_parser_of_the_installed_vllm() -> None:
    assert {name for _, name in FAMILIES} <= {*tool_parsers()}


@pytest.mark.slow
def test_the_sampled_tokens_are_trained_and_the_call_is_parsed(tmp_path: Path) -> None:
    policy = client(tmp_path, [], custom_chat_template=TEMPLATE)
    words = policy.chat.tokenizer
    ids = [*range(5, 9), words.eos_token_id]
    server: Server = policy.client  # type: ignore[assignment]
    server.actions = [ids, ids]
    words.decode = lambda given, **_: '<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>'
    context = sampling_context(policy, max_tokens=12)
    act = Act("solver", "0", 0, 0, as_observation("so is"), None, {"tools": [ADD], "stop": ["END"], "max_tokens": 9})
    action = asyncio.run(context.act(act, 0))
    assert action.response_ids == ids
    assert [each["function"]["name"] for each in action.tool_calls] == ["add"]
    assert action == with_ids(act, action)
    assert (server.asked[0]["max_tokens"], server.asked[0]["stop"]) == (9, ["END"])
    assert policy.chat.render(act.observation, tools=[ADD]).startswith('[tools] [{"type": "function"')
    again = [*act.observation, action.message, {"role": "tool", "content": "4"}]
    assert policy.chat.render(again, tools=[ADD]).endswith("<tool_call> add 2 </tool_call> [tool] 4 [assistant] ")
    words.decode = lambda given, **_: "<tool_call>{"
    assert "cannot be parsed" in str(asyncio.run(context.act(act, 0)).malformed)


def sampling_context(policy: Any, held_out: Any = None, trained: bool = True, **sampling: Any) -> Any:
    parts = TaskContext(UsesTool(), TaskSet(), {"solver": AgentConfig("solver", "p", sampling=Sampling(**sampling))})
    known = frozenset({"p"} if trained else ())
    return PolicySamplingContext(WorkerContext(parts, {"p": policy}, 0, trained=known), TASK, "u", 1, held_out)


class Echo:
    """A client that keeps its sampling parameters."""

    sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": -1}

    async def answer(self, messages: Any, sampling: Any, request_id: str, act: Act) -> Action:
        self.got = sampling
        return Action("x", malformed="no call" if act.parameters else None)


def test_a_temperature_of_a_request_is_refused_where_it_would_be_trained() -> None:
    act = Act("solver", "0", 0, 0, as_observation("q"), None, {"temperature": 0.5, "max_tokens": 30})
    with pytest.raises(MarlError, match=r"sets temperature=0.5, but policy 'p' is trained at 1: .*other probabilities"):
        asyncio.run(sampling_context(Echo()).act(act, 0))
    same = Act("solver", "0", 0, 0, as_observation("q"), None, {"temperature": 1.0})
    assert asyncio.run(sampling_context(Echo()).act(same, 0)).text == "x"
    frozen = Echo()
    asyncio.run(sampling_context(frozen, trained=False, max_tokens=20).act(act, 0))
    assert (frozen.got["temperature"], frozen.got["max_tokens"]) == (0.5, 20)
    held_out = Echo()
    asyncio.run(sampling_context(held_out, held_out={"temperature": 0.0, "top_p": 1.0}).act(act, 0))
    assert held_out.got["temperature"] == 0.0


async def test_a_malformed_call_marks_the_action_as_invalid() -> None:
    class Once(Workflow):
        async def run(self, task: Any, team: Any) -> str:
            return (await team["solver"].act(task.prompt, tools=[ADD])).text

    context = sampling_context(Echo())
    async with Run(Once(), TASK, ["solver"]) as run:
        await drive(run, lambda act: context.act(act, 0))
    again = await replay(Once(), TASK, ["solver"], run.journal)
    stored = decode_journal(json.loads(json.dumps(encode_journal(run.journal))))
    async with Run(Once(), TASK, ["solver"], stored) as restarted:
        assert await restarted.next() is None
    assert [run.invalid, again.invalid, restarted.invalid] == [{("solver", "0"): "no call"}] * 3


def test_an_endpoint_gets_the_tools_and_returns_its_calls() -> None:
    called = {"id": "theirs", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [called], "reasoning_content": "2 and 2"}
    policy, asked = endpoint({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]})
    act = Act("solver", "0", 0, 0, as_observation("q"), None, {"tools": [ADD], "temperature": 0.5})
    action = asyncio.run(sampling_context(policy, trained=False).act(act, 0))
    assert (asked[0]["tools"], asked[0]["temperature"], "response_format" in asked[0]) == ([ADD], 0.5, False)
    assert (action.text, action.reasoning) == ("", "2 and 2")
    assert action.tool_calls == with_ids(act, Action("", tool_calls=[CALL])).tool_calls


@pytest.mark.parametrize(
    ("finish", "tokens", "arguments", "why"),
    [("length", 7, '{"a": 2}', "cut off"), ("tool_calls", 7, '{"a": ', "no JSON object")],
)
def test_a_call_that_an_endpoint_cut_off_is_malformed(finish: str, tokens: int, arguments: str, why: str) -> None:
    called = {"id": "theirs", "type": "function", "function": {"name": "add", "arguments": arguments}}
    choice = {"message": {"role": "assistant", "content": "so", "tool_calls": [called]}, "finish_reason": finish}
    policy, _ = endpoint({"choices": [{"index": 0, **choice}], "usage": {"completion_tokens": tokens}})
    act = Act("solver", "0", 0, 0, as_observation("q"), None, {"tools": [ADD]})
    action = asyncio.run(policy.answer(list(act.observation), Echo.sampling, "r", act))
    assert (action.text, action.tool_calls) == ("so", [])
    assert why in str(action.malformed)
    assert action.stop_reason == ("length" if why == "cut off" else finish)


def endpoint(body: dict[str, Any]) -> tuple[EndpointClient, list[dict[str, Any]]]:
    """A client whose server answers with a body, and the requests that the server gets."""
    httpx2 = pytest.importorskip("httpx2", reason="openai before version 3")
    whole, asked = {"id": "c", "object": "chat.completion", "created": 0, "model": "m", **body}, list[dict[str, Any]]()

    def serve(request: Any) -> Any:
        asked.append(json.loads(request.content))
        return httpx2.Response(200, json=whole)

    policy = EndpointClient("p", Endpoint("http://nowhere/v1", "m"), "key", Echo.sampling, max_tokens=9)
    http = openai.DefaultAsyncHttpxClient(transport=httpx2.MockTransport(serve))
    policy._client = policy._client.with_options(http_client=http)
    return policy, asked
