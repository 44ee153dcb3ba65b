"""Clients of OpenAI's API in a workflow: chat completions, responses, streams, threads and errors, without a socket."""

import asyncio
import copy
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import openai
import pytest
from marl_verl_agents import openai_client, openai_client_sync, transport
from marl_verl_agents.gateway import ExternalWorkflow
from marl_verl_testing import ScriptedPolicy, check_workflow
from marl_verl_testing.scripted import ScriptedContext

from marl_verl.algo.sampling import Independent, drive
from marl_verl.episode import Act, Action, Journal, ReplayMismatch, Run, Workflow, replay
from marl_verl.episode.errors import Limits
from marl_verl.tasks import Task
from plugins.agents.tests.test_client_keys import APIS, LEAST, MESSAGES, RESPONSES, TOOLS, USER

TASK = Task("t", "2 + 2?")
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
ADD: Any = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}
CALLS = {"content": "so", "tool_calls": [{"name": "add", "arguments": {"a": 2}}], "reasoning_content": "2 and 2"}
ASK: Any = [USER]


class Does(Workflow):
    """A workflow of one function."""

    do: Any

    async def run(self, task: Task, team: Any) -> Any:
        return await self.do(team)


def answers(
    do: Callable[[Any], Awaitable[Any]], replies: Any = "4", seconds: float | None = None, **agents: Any
) -> Any:
    """The answer of a workflow that is replayed, without the check in other processes (local functions)."""

    async def go() -> Any:
        policy = ScriptedPolicy({"solver": replies, **agents})
        context = ScriptedContext(Does(do), TASK, policy)
        async with Run(Does(do), TASK, policy.agents, limits=Limits(call_seconds=seconds)) as run:
            await drive(run, lambda act: context.act(act, 0))
        assert (await replay(Does(do), TASK, policy.agents, run.journal)).answer == run.answer
        return run

    return asyncio.run(go())


def test_a_chat_completion_has_text_calls_ids_and_usage() -> None:
    async def do(team: Any) -> Any:
        client = openai_client(team, "solver")
        first = await client.chat.completions.create(model="m", messages=ASK, tools=[ADD], tool_choice="auto")
        message = first.choices[0].message
        result: Any = {"role": "tool", "content": "4", "tool_call_id": message.tool_calls[0].id}
        second = await client.chat.completions.create(
            model="m", messages=[*ASK, message, result], stop="END", seed=3, user="me", temperature=1.0
        )
        return [each.model_dump() for each in (first, second)]

    run = answers(do, [CALLS, "4"])
    first, second = run.answer
    message = first["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("so", "2 and 2")
    assert message["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 2}'}
    assert first["choices"][0]["finish_reason"] == "tool_calls"
    assert second["choices"][0]["finish_reason"] == "stop"
    assert first["id"] != second["id"]
    assert second["usage"]["completion_tokens"] == 1
    acts = [act for act, _ in run.turns]
    assert [act.parameters for act in acts] == [{"tools": [ADD]}, {"stop": ["END"], "temperature": 1.0}]
    assert acts[1].observation[1]["tool_calls"][0]["id"] == message["tool_calls"][0]["id"]


def test_streamed_chat() -> None:
    async def do(team: Any) -> Any:
        client = team.openai("solver")
        whole = [chunk async for chunk in (await client.chat.completions.create(model="m", messages=ASK, stream=True))]
        assert all(chunk.choices for chunk in whole)  # programs take the first
        more = {"stream": True, "stream_options": {"include_usage": True}}
        used = [chunk async for chunk in await client.chat.completions.create(model="m", messages=ASK, **more)]
        assert (used[-1].choices, used[-1].usage.completion_tokens) == ([], 1)
        async with client.chat.completions.stream(model="m", messages=ASK, tools=[strict(ADD)]) as managed:
            final = await managed.get_final_completion()
        return [len(whole), whole[0].choices[0].delta.content, final.choices[0].message.tool_calls[0].function.name]

    assert answers(do, ["4", "4", CALLS]).answer == [2, "4", "add"]


def strict(tool: Any) -> Any:
    parameters = tool["function"]["parameters"] | {"additionalProperties": False}
    return {**tool, "function": {**tool["function"], "strict": True, "parameters": parameters}}


def test_responses_with_calls_and_results() -> None:
    tool: Any = {"type": "function", "name": "add", "parameters": SCHEMA, "strict": False}

    async def do(team: Any) -> Any:
        client = openai_client(team, "solver")
        first = await client.responses.create(model="m", input="2?", instructions="brief", tools=[tool])
        items: Any = [{"role": "user", "content": "2?"}, *(item.model_dump() for item in first.output)]
        call = next(item for item in first.output if item.type == "function_call")
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": "4"})
        wanted: Any = {"type": "json_schema", "name": "x", "schema": SCHEMA}
        last = await client.responses.create(model="m", input=items, text={"format": wanted}, max_output_tokens=9)
        async with client.responses.stream(model="m", input="2?") as stream:
            kinds = [event.type async for event in stream]
            assert (await stream.get_final_response()).output_text == "so"
        return [first.output_text, json.loads(call.arguments), last.output_text, last.status, kinds[0], kinds[-1]]

    run = answers(do, [CALLS, "4", CALLS])
    assert run.answer == ["so", {"a": 2}, "4", "completed", "response.created", "response.completed"]
    (first, _), (second, _), _ = run.turns
    assert first.observation == ({"role": "system", "content": "brief"}, {"role": "user", "content": "2?"})
    assert first.parameters["tools"][0]["function"]["name"] == "add"
    _, thought, result = second.observation
    assert (thought["content"], thought["reasoning_content"]) == ("so", "2 and 2")
    assert thought["tool_calls"][0]["id"] == result["tool_call_id"]
    assert second.parameters["response_format"]["json_schema"]["schema"] == SCHEMA
    assert second.parameters["max_tokens"] == 9


class Shortens(Workflow):
    """Adds to a conversation until it is too long, then goes on with its last message; two clients at once."""

    async def run(self, task: Task, team: Any) -> str:
        async def talk(agent: str) -> str:
            messages, found = [*ASK], ""
            for _ in range(3):
                try:
                    reply = await openai_client(team, agent).chat.completions.create(model="m", messages=messages, n=2)
                except openai.BadRequestError as error:
                    found += f"{error.code} {error.body['type']} {error.param}: {error.body['message']}. "
                    messages = messages[-1:]
                    reply = await openai_client(team, agent).chat.completions.create(model="m", messages=messages)
                messages += [reply.choices[0].message, {"role": "user", "content": f"{reply.choices[0].index}?"}]
            return found

        return " ".join(await asyncio.gather(talk("solver"), talk("judge")))


def test_a_request_that_is_too_long_is_an_error_that_a_workflow_may_handle() -> None:
    """As in OpenAI's API, live and on every replay, also by samplers and without any policy."""
    task, policy = Task("t", "q"), ScriptedPolicy({"solver": "fo", "judge": "yes"}, context={"solver": 9})
    run = check_workflow(Shortens(), task, policy, seconds=300)
    why = "an observation of 10 characters exceeds the limit of agent 'solver', 9"
    assert run.answer == f"context_length_exceeded invalid_request_error messages: {why}.  "
    slots = [act.slot.removeprefix("parallel-1") for act, _ in run.turns if act.agent == "solver"]
    assert slots == [".choice0", ".choice1", "", ".choice0#1", ".choice1#1"]
    assert [each.agent for each in run.journal.calls()] == [None]  # no failed tool call of the agent

    sample = asyncio.run(Independent(1).sample(ScriptedContext(Shortens(), task, policy)))
    assert not sample.failures
    (episode,) = sample.episodes
    assert episode.answer == run.answer
    # a replay alone knows no limit
    assert asyncio.run(replay(Shortens(), task, policy.agents, episode.journal)).answer == run.answer
    with pytest.raises(ReplayMismatch):
        asyncio.run(replay(Shortens(), task, policy.agents, Journal(tuple(episode.journal.acts()))))


async def test_a_closed_run_ends_its_thread() -> None:
    ended: list[type[BaseException]] = []

    def stubborn(client: Any) -> Any:
        while True:
            try:
                return client.chat.completions.create(model="m", messages=ASK)
            except Exception as error:  # noqa: BLE001 - as a framework that tries again
                ended.append(type(error))
            except BaseException as error:
                ended.append(type(error))
                raise

    async def do(team: Any) -> Any:
        return await team.in_thread(stubborn, openai_client_sync(team, "solver"))

    async with Run(Does(do), TASK, ["solver"]) as run:
        assert await run.next()
    async with asyncio.timeout(5):
        while not ended:
            await asyncio.sleep(0.01)
    assert ended == [asyncio.CancelledError]


@pytest.mark.parametrize("inside", [False, True])
def test_a_conversation_of_a_parallel_task_goes_on_alone(inside: bool) -> None:
    """As of an agent with a guardrail beside it; the same in each of several sub-agents."""

    async def do(team: Any) -> str:
        async def ask(agent: str, messages: list[Any]) -> list[Any]:
            reply = await openai_client(team).chat.completions.create(model=agent, messages=messages)
            return [*messages, {"role": "assistant", "content": reply.choices[0].message.content.strip()}, *ASK]

        async def sub_agent() -> None:
            talks = await asyncio.gather(ask("solver", ASK), ask("judge", ASK), ask("solver", ASK))
            for talk in (talks[2], talks[0]):  # equal: the first continues that of the task that was created first
                await ask("solver", await ask("solver", talk))
            await ask("solver", ASK)

        await (asyncio.gather(sub_agent(), sub_agent()) if inside else sub_agent())
        return "done"

    acts = [act for act, _ in answers(do, " 4 ", judge="yes").turns if act.agent == "solver"]
    assert {m["content"] for act in acts for m in act.observation if m["role"] == "assistant"} == {" 4 "}
    turns = {act.slot: act.turn for act in acts}
    for outer in ("parallel-1.", "parallel-2.") if inside else ("parallel-",):
        slots = {f"{outer}{number}{turn}" for number in (1, 3) for turn in ("", "#1", "#2")}
        assert {slot for slot in turns if slot.startswith(outer)} == slots
    assert len(acts) == len(turns) == (14 if inside else 7)


REPLY = {
    **{"content": " \n so \n", "reasoning_content": "\n hm\n"},
    "tool_calls": [{"name": "add", "arguments": '{"a":  2} '}],
}


def given_back(path: str, reply: dict[str, Any]) -> list[dict[str, Any]]:
    """The items of a reply and a tool's result, as a client sends them that strips texts and parses arguments."""
    if path == RESPONSES:
        items = []
        for item in reply["output"]:
            kept = {key: value for key, value in item.items() if key not in ("id", "status")}
            for part in kept.get("content", ()):
                part["text"] = part["text"].strip()
            if "arguments" in kept:
                kept["arguments"] = json.dumps(json.loads(kept["arguments"]))
            items.append(kept)
        return [*items, {"type": "function_call_output", "call_id": items[-1]["call_id"], "output": "4"}]
    if path == MESSAGES:
        for block in reply["content"]:
            block |= {key: block[key].strip() for key in ("text", "thinking") if key in block}
        result = {"type": "tool_result", "tool_use_id": reply["content"][-1]["id"], "content": "4"}
        return [{"role": "assistant", "content": reply["content"]}, {"role": "user", "content": [result]}]
    message = reply["choices"][0]["message"]
    (call,) = message["tool_calls"]
    call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]))
    message |= {key: message[key].strip() for key in ("content", "reasoning_content")}
    return [message, {"role": "tool", "tool_call_id": call["id"], "content": "4"}]


async def converse(client: Any, base: str, path: str) -> None:
    key = "input" if path == RESPONSES else "messages"
    body = LEAST[path] | {"tools": TOOLS[path], key: [USER]}
    for _ in range(3):
        body[key] = [*body[key], *given_back(path, (await client.post(f"{base}{path}", json=body)).json())]


class Inside(Workflow):
    path: str

    async def run(self, task: Task, team: Any) -> str:
        async with httpx.AsyncClient(transport=transport(team, "solver")) as client:
            await converse(client, "http://any", self.path)
        return "4"


class Outside(ExternalWorkflow):
    path: str

    async def run(self, task: Task, endpoints: Any) -> str:
        async with httpx.AsyncClient() as client:
            await converse(client, endpoints["solver"].anthropic, self.path)
        return "4"


@pytest.mark.parametrize("kind", [Inside, Outside])
@pytest.mark.parametrize("path", APIS)
def test_a_reply_with_other_white_space_continues_as_it_was_sampled(path: str, kind: Any) -> None:
    sample = asyncio.run(Independent(1).sample(ScriptedContext(kind(path), TASK, ScriptedPolicy({"solver": REPLY}))))
    assert not sample.failures, sample.failures[0].trace
    turns = sample.episodes[0].turns
    assert [turn.slot for turn in turns] == ["0", "1", "2"]
    said = [turn.action.message for turn in turns]
    assert said[0]["content"] == REPLY["content"]
    assert [turns[2].observation[at] for at in (1, 3)] == said[:2]
    assert turns[1].act.former is turns[0].action
    assert turns[2].act.former is turns[1].action


class Slow(ScriptedContext):
    """Policies that do not answer requests whose number, from 1, is in `late`."""

    late: tuple[int, ...] = ()

    async def act(self, act: Act, *given: Any, **more: Any) -> Action:
        action = await super().act(act, *given, **more)
        if len(self.asked) in self.late:
            await asyncio.sleep(60)
        return action


class Retries(ExternalWorkflow):
    """Two turns of a conversation, whose requests it repeats until they are answered."""

    path: str
    n: int = 1

    async def run(self, task: Task, endpoints: Any) -> str:
        base, key = endpoints["solver"].anthropic, "input" if self.path == RESPONSES else "messages"
        body = LEAST[self.path] | {key: [USER]} | ({"n": self.n} if self.n > 1 else {})
        for _ in range(2):
            while True:
                try:
                    async with httpx.AsyncClient(timeout=0.5) as client:
                        reply = (await client.post(f"{base}{self.path}", json=body)).json()
                    break
                except httpx.ReadTimeout:
                    continue
            said = reply["choices"][0]["message"]["content"] if self.n > 1 else "4"
            body[key] = [*body[key], {"role": "assistant", "content": said}, USER]
        return "4"


@pytest.mark.parametrize("path", APIS)
def test_a_request_repeated_after_a_timeout_is_the_same_turn(path: str) -> None:
    context = Slow(Retries(path), TASK, ScriptedPolicy({"solver": "4"}))
    context.late = (1, 2, 4)
    sample = asyncio.run(Independent(1).sample(context))
    assert not sample.failures, sample.failures[0].trace
    turns = sample.episodes[0].turns
    assert len(context.asked) >= 5
    assert [(turn.slot, turn.turn, turn.index) for turn in turns] == [("0", 0, 0), ("1", 1, 1)]
    assert turns[1].act.former is turns[0].action
    assert turns[1].observation[1] == turns[0].action.message


def test_choices_of_a_request_that_is_repeated_are_sampled_once() -> None:
    context = Slow(Retries(next(iter(APIS)), n=2), TASK, ScriptedPolicy({"solver": "4"}))
    context.late = (2, 5)
    turns = asyncio.run(Independent(1).sample(context)).episodes[0].turns
    assert [turn.slot for turn in turns] == ["choice0", "choice1", "choice0.choice0", "choice0.choice1"]
    assert len(context.asked) == 6


async def test_an_act_that_is_cancelled_takes_no_turn() -> None:
    """Another act takes its place, and an action that comes late for the cancelled one is not its."""

    class Cancels(Workflow):
        async def run(self, task: Task, team: Any) -> str:
            await team["solver"].act("first", slot="x")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await team["solver"].act("second", slot="x")
            return str((await team["solver"].act("third", slot="x")).text)

    async with Run(Cancels(), TASK, ["solver"]) as run:
        (first,) = await run.next() or ()
        run.resolve(first, Action("1"))
        (late,) = await run.next() or ()
        (act,) = await run.next() or ()
        run.resolve(late, Action("late"))
        run.resolve(act, Action("3"))
        assert await run.next() is None
    assert late.key == act.key == ("solver", "x#1")
    assert act.former == Action("1")
    assert run.answer == "3"
    assert [(turn.observation[0]["content"], turn.index) for turn, _ in run.turns] == [("first", 0), ("third", 1)]


@pytest.mark.parametrize("sync", [False, True])
def test_a_copy_of_a_client_is_the_client(sync: bool) -> None:
    """Frameworks copy the objects that hold it (DSPy)."""

    async def do(team: Any) -> str:
        client = openai_client_sync(team, "solver") if sync else openai_client(team, "solver")
        for value in (client, client._client, team.transport("solver")):
            assert copy.deepcopy({"held": value})["held"] is value
        again = copy.deepcopy(client.with_options(max_retries=3))

        def ask() -> Any:
            return again.chat.completions.create(model="m", messages=ASK)

        return (await team.in_thread(ask) if sync else await ask()).choices[0].message.content

    assert answers(do).answer == "4"
