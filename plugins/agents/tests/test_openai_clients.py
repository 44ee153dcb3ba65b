"""Clients of OpenAI's API in a workflow: chat completions, responses, streams, threads and errors, without a socket."""

from __future__ import annotations

import asyncio
import copy
import gc
import json
import pickle
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from marl_verl_agents import openai_client, openai_client_sync, transport
from marl_verl_testing import ScriptedPolicy, check_workflow
from marl_verl_testing.scripted import ScriptedContext

from marl_verl.algo.sampling import Independent, drive
from marl_verl.episode import Journal, ReplayMismatch, Run, Workflow, WorkflowError, replay
from marl_verl.tasks.base import Task

TASK = Task("t", "2 + 2?")
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
ADD: Any = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}
CALLS = {"content": "so", "tool_calls": [{"name": "add", "arguments": {"a": 2}}], "reasoning_content": "2 and 2"}
ASK: Any = [{"role": "user", "content": "2 + 2?"}]


class Does(Workflow):
    """A workflow of one function."""

    do: Any

    async def run(self, task: Task, team: Any) -> Any:
        return await self.do(team)


def does(do: Callable[[Any], Awaitable[Any]]) -> Workflow:
    workflow = Does.__new__(Does)
    object.__setattr__(workflow, "do", do)
    return workflow


def answers(do: Callable[[Any], Awaitable[Any]], replies: Any = "4", **agents: Any) -> Any:
    """The answer of a workflow that is replayed, without the check in other processes (local functions)."""

    async def go() -> Any:
        policy = ScriptedPolicy({"solver": replies, **agents})
        found = []
        for journal in (None, "again"):
            context = ScriptedContext(does(do), TASK, policy)
            given = None if journal is None else found[0].journal
            async with Run(does(do), TASK, policy.agents, given, strict=given is not None) as run:
                await drive(run, lambda act, context=context: context.act(act, 0))
            found.append(run)
            assert given is None or not context.asked
        assert found[0].answer == found[1].answer
        return found[0]

    return asyncio.run(go())


class Chats(Workflow):
    async def run(self, task: Task, team: Any) -> str:
        asked: Any = [{"role": "user", "content": task.prompt}]
        whole = await openai_client(team, "solver").chat.completions.create(model="gpt-5", messages=asked)
        said: Any = [whole.choices[0].message, {"role": "user", "content": "right?"}]
        judged = await openai_client(team).chat.completions.create(
            model="judge", messages=[{"role": "developer", "content": "brief"}, *said], max_tokens=3
        )
        return f"{whole.choices[0].message.content} {judged.choices[0].message.content}"


def test_a_workflow_of_clients_is_replayable() -> None:
    run = check_workflow(Chats(), TASK, ScriptedPolicy({"solver": "4", "judge": "yes"}), seconds=300)
    assert run.answer == "4 yes"
    judged = run.turns[1][0]
    assert judged.parameters == {"max_tokens": 3}
    brief, draft = {"role": "system", "content": "brief"}, {"role": "assistant", "content": "4"}
    assert judged.observation == (brief, draft, {"role": "user", "content": "right?"})


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
        stream = await client.chat.completions.create(model="m", messages=ASK, stream=True)
        whole = [chunk async for chunk in stream]
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


def test_several_choices_are_acts_in_named_slots() -> None:
    async def do(team: Any) -> Any:
        found = await openai_client(team, "solver").chat.completions.create(model="m", messages=ASK, n=3)
        more = await openai_client(team, "solver", slot="b").chat.completions.create(model="m", messages=ASK, n=2)
        return [choice.message.content for choice in [*found.choices, *more.choices]]

    run = answers(do, lambda act: act.slot)
    slots = ["choice0", "choice1", "choice2", "b.choice0", "b.choice1"]
    assert run.answer == slots == [act.slot for act, _ in run.turns]


def test_overlapping_requests_need_slots() -> None:
    async def do(team: Any, *slots: Any) -> Any:
        clients = [openai_client(team, "solver", slot=slot) for slot in slots]
        found = await asyncio.gather(*(client.responses.create(model="m", input="q") for client in clients))
        return [each.output_text for each in found]

    assert answers(lambda team: do(team, "a", "b"), lambda act: act.slot).answer == ["a", "b"]
    with pytest.raises(WorkflowError, match="acts twice concurrently in slot 'a'"):
        answers(lambda team: do(team, "a", "a"))


def test_invalid_requests_are_errors_in_openais_format() -> None:
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]

    async def do(team: Any) -> Any:
        client = openai_client(team).with_options(max_retries=5)  # an error is not retried
        with pytest.raises(openai.NotFoundError, match="the team has no agent 'solvr': did you mean 'solver'"):
            await client.chat.completions.create(model="solvr", messages=ASK)
        with pytest.raises(openai.BadRequestError, match="contains image, which is not supported") as error:
            await client.chat.completions.create(model="solver", messages=image)
        assert error.value.body["type"] == "invalid_request_error"
        with pytest.raises(openai.BadRequestError, match="'previous_response_id' is not supported"):
            await client.responses.create(model="solver", input="q", previous_response_id="r")
        with pytest.raises(openai.NotFoundError, match=r"/embeddings is not supported"):
            await client.embeddings.create(model="solver", input="q")
        return (await client.responses.create(model="solver", input="q")).output_text

    assert len(answers(do).turns) == 1


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

    context = ScriptedContext(Shortens(), task, policy, mix=None)
    sample = asyncio.run(Independent(1).sample(context))
    assert not sample.failures
    (episode,) = sample.episodes
    assert episode.answer == run.answer
    alone = asyncio.run(replay(Shortens(), task, policy.agents, episode.journal))  # knows no limit
    assert alone.answer == run.answer
    with pytest.raises(ReplayMismatch):
        asyncio.run(replay(Shortens(), task, policy.agents, Journal(tuple(episode.journal.acts()))))


def test_no_request_waits_for_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The openai package finds the platform in a thread before a client's first request; concurrent first requests
    would then have no order that a replay could repeat."""
    monkeypatch.setattr("openai._base_client.get_platform", lambda: pytest.fail("a thread was started"))

    async def do(team: Any) -> Any:
        return (await openai_client(team, "solver").responses.create(model="m", input="q")).output_text

    assert answers(do).answer == "4"


@pytest.mark.parametrize("package", ["httpx", "httpx2"])
def test_the_transport_serves_any_httpx_client(package: str) -> None:
    module = pytest.importorskip(package)

    async def do(team: Any) -> Any:
        async with module.AsyncClient(transport=transport(team, "solver")) as client:
            found = await client.post("http://any/v1/chat/completions", json={"messages": ASK})
            wrong = await client.post("http://any/v1/chat/completions", content=b"{")
        return [found.json()["choices"][0]["message"]["content"], wrong.status_code, wrong.json()["error"]["type"]]

    assert answers(do).answer == ["4", 400, "invalid_request_error"]


def test_the_difference_in_the_docs_is_a_workflow() -> None:
    """The ```diff block of docs/frameworks.md: its new side runs, and is replayable."""
    page = (Path(__file__).parents[3] / "docs" / "frameworks.md").read_text()
    block = re.findall(r"```diff\n(.*?)```", page, re.DOTALL)[0]
    code = "\n".join(line[1:] for line in block.splitlines() if not line.startswith("-"))
    names: dict[str, Any] = {"Workflow": Workflow}
    exec(code, names)
    assert answers(lambda team: names["Solve"]().run(TASK, team)).answer == "4"


# Synchronous code


def talk(client: Any, rounds: int = 2) -> str:
    said = "q"
    for _ in range(rounds):
        said = (
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": said}])
            .choices[0]
            .message.content
        )
    return said


def test_a_synchronous_client_in_the_loop_is_refused() -> None:
    async def do(team: Any) -> Any:
        return talk(openai_client_sync(team, "solver"))

    with pytest.raises(WorkflowError, match=r"BadRequestError.*would block the event loop.*openai_client"):
        answers(do)


def test_an_async_client_in_another_loop() -> None:
    async def do(team: Any) -> Any:
        client = openai_client(team, "solver")

        async def inside() -> str:
            return (await client.responses.create(model="m", input="q")).output_text

        return await team.in_thread(lambda: asyncio.run(inside()))

    assert answers(do).answer == "4"


def test_a_closed_run_ends_its_thread() -> None:
    ended: list[type[BaseException]] = []

    def stubborn(client: Any) -> str:
        while True:
            try:
                return talk(client)
            except Exception as error:  # noqa: BLE001 - as a framework that tries again
                ended.append(type(error))
            except BaseException as error:
                ended.append(type(error))
                raise

    async def do(team: Any) -> Any:
        return await team.in_thread(stubborn, openai_client_sync(team, "solver"))

    async def go() -> None:
        async with Run(does(do), TASK, ["solver"]) as run:
            assert await run.next()
        for _ in range(200):
            if ended:
                return
            await asyncio.sleep(0.01)

    asyncio.run(go())
    assert ended == [asyncio.CancelledError]


def test_nothing_of_it_is_imported_unless_used() -> None:
    code = "import marl_verl.episode, sys; print([m for m in ('openai', 'httpx', 'mcp') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120).stdout
    assert out.strip() == "[]"


# Parallel sub-agents in one client, and copies of it


def test_parallel_sub_agents_have_slots_of_their_own() -> None:
    """By where they are created, in any order of arrival: gathered, in a task group, nested, with the same prompts."""
    run = check_workflow(Fans(), TASK, ScriptedPolicy({"solver": lambda act: f"{act.slot} {len(act.observation)}"}))
    lanes = {slot: [act.turn for act, _ in run.turns if act.slot.partition("#")[0] == slot] for slot in run.answer}
    assert lanes == {
        **{"parallel-1": [0, 1, 2, 3], "parallel-2": [0, 1, 2, 3], "parallel-3": [0, 1]},
        **{"parallel-1.1": [0, 1], "parallel-1.2": [0, 1], "parallel-2.1": [0, 1], "parallel-2.2": [0, 1]},
        **{"0": [0], "left": [0], "right": [0]},
    }


class Fans(Workflow):
    async def run(self, task: Task, team: Any) -> Any:
        client = openai_client(team, "solver")

        async def ask(question: str, through: Any = client) -> str:
            reply = await through.chat.completions.create(model="m", messages=[{"role": "user", "content": question}])
            return reply.choices[0].message.content

        async def sub_agent(question: str) -> str:
            return await ask(await ask(question))

        async def nested() -> list[str]:
            return await asyncio.gather(sub_agent("3"), sub_agent("4"))

        texts = await asyncio.gather(*map(sub_agent, ("1", "1", "2")))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(sub_agent(text)) for text in texts[:2]]
        texts += [text for pair in await asyncio.gather(nested(), nested()) for text in pair]
        texts += [await asyncio.create_task(ask("alone")), *(task.result() for task in tasks)]
        texts += await asyncio.gather(
            *(ask("5", openai_client(team, "solver", slot=slot)) for slot in ("left", "right"))
        )
        return sorted({text.split()[0].partition("#")[0] for text in texts})


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

    run = answers(do, " 4 ", judge="yes")
    acts = [act for act, _ in run.turns if act.agent == "solver"]
    assert {m["content"] for act in acts for m in act.observation if m["role"] == "assistant"} == {" 4 "}
    turns = {act.slot: act.turn for act in acts}
    for outer in ("parallel-1.", "parallel-2.") if inside else ("parallel-",):
        slots = {f"{outer}{number}{turn}" for number in (1, 3) for turn in ("", "#1", "#2")}
        assert {slot for slot in turns if slot.startswith(outer)} == slots
    assert len(acts) == len(turns) == (14 if inside else 7)


@pytest.mark.parametrize("sync", [False, True])
def test_a_copy_of_a_client_is_the_client(sync: bool) -> None:
    """Frameworks copy and pickle the objects that hold it (DSPy, pydantic models)."""
    pickled = []

    async def do(team: Any) -> str:
        client = openai_client_sync(team, "solver") if sync else openai_client(team, "solver")
        through = transport(team, "solver")
        for value in (client, client._client, through):
            assert copy.deepcopy({"held": value})["held"] is value
            assert pickle.loads(pickle.dumps(value)) is value
        pickled.append(pickle.dumps(through))
        again = copy.deepcopy(client.with_options(max_retries=3))

        def ask() -> Any:
            return again.chat.completions.create(model="m", messages=ASK)

        return (await team.in_thread(ask) if sync else await ask()).choices[0].message.content

    assert answers(do).answer == "4"
    gc.collect()
    with pytest.raises(RuntimeError, match="a pickled TeamTransport of a run works in the process of the run only"):
        pickle.loads(pickled[0])
