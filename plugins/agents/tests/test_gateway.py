"""The gateway: real HTTP requests, of this process and of others, that are acts of an episode."""

import asyncio
import contextvars
import sys
import textwrap
import tracemalloc
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
from marl_verl_agents.gateway import Endpoints, ExternalWorkflow, process
from marl_verl_testing import ScriptedPolicy
from marl_verl_testing.scripted import ScriptedContext

from marl_verl.algo.sampling import Failure, Independent, Sample
from marl_verl.episode import Run
from marl_verl.errors import MarlError
from marl_verl.tasks import Task, TaskSet
from plugins.agents.tests.test_openai_clients import ASK, TASK, Slow
from tests.waiting import alive, wait_until

ADD: Any = {"name": "add", "description": "adds", "input_schema": {"type": "object", "properties": {}}}
CALLS = {"content": "so", "tool_calls": [{"name": "add", "arguments": {"b": 2, "a": 2}}], "reasoning_content": "hm"}


class Does(ExternalWorkflow):
    """An external workflow of one function."""

    do: Any
    ignored = ("top_p",)

    async def run(self, task: Task, endpoints: Endpoints) -> Any:  # type: ignore[override]
        return await self.do(endpoints)


class Whole(TaskSet):
    """Scores 1 if the answer is right."""

    def score(self, task: Task, answer: Any) -> float:
        return float(answer == "4")


def sampled(do: Callable[[Endpoints], Awaitable[Any]], replies: Any = "4", episodes: int = 1, **agents: Any) -> Sample:
    """The episodes of a workflow, by the independent sampler."""
    context = ScriptedContext(Does(do), TASK, ScriptedPolicy({"solver": replies, **agents}), tasks=Whole())
    return asyncio.run(Independent(episodes).sample(context))


def one(sample: Sample) -> Any:
    assert not sample.failures, sample.failures[0].trace
    (episode,) = sample.episodes
    return episode


def failure(sample: Sample) -> Failure:
    assert not sample.episodes
    return sample.failures[0]


async def chat(endpoints: Endpoints, messages: Any = ASK, **more: Any) -> Any:
    async with openai.AsyncOpenAI(base_url=endpoints["solver"].openai, api_key="none", max_retries=0) as client:
        return await client.chat.completions.create(model="any", messages=messages, **more)


def test_a_conversation_is_one_slot_and_another_request_begins_the_next() -> None:
    async def do(endpoints: Endpoints) -> str:
        first = (await chat(endpoints, top_p=0.5, max_tokens=7)).choices[0].message
        longer = [*ASK, {"role": "assistant", "content": first.content}, {"role": "user", "content": "sure?"}]
        await asyncio.gather(chat(endpoints, longer), chat(endpoints, [{"role": "user", "content": "a subagent"}]))
        await chat(endpoints, [*longer, {"role": "assistant", "content": "4"}, {"role": "user", "content": "really?"}])
        await chat(endpoints, longer)  # from an earlier state
        return "4"

    episode = one(sampled(do))
    assert (episode.score, episode.turns[0].parameters) == (1.0, {"max_tokens": 7})
    assert episode.turns[0].action.response_ids == list(b"4")  # what the policy sampled
    slots = {(turn.slot, turn.turn, len(turn.observation)) for turn in episode.turns}
    with pytest.raises(MarlError, match="workflow 'Does' cannot be replayed"):
        Run(Does(do), TASK, ("solver",), episode.journal)
    subagent, again = ("conversation-2", 0, 1), ("conversation-3", 0, 3)
    assert slots == {("0", 0, 1), ("1", 1, 3), subagent, ("2", 2, 5), again}


def test_an_answer_that_no_client_has_read_is_that_of_the_repeated_request() -> None:
    async def do(endpoints: Endpoints) -> str:
        async with httpx.AsyncClient(timeout=60) as client:
            url = f"{endpoints['solver'].openai}/chat/completions"
            async with client.stream("POST", url, json={"messages": ASK}):
                pass  # closes the connection in the middle of a long body
            return str((await client.post(url, json={"messages": ASK})).json()["choices"][0]["message"]["content"])

    async def go() -> None:  # `asyncio.run` would take seconds for the `repr` of what it returns
        policy = ScriptedPolicy({"solver": {"content": "4", "reasoning_content": "4" * 2**22}})
        episode = one(await Independent(1).sample(ScriptedContext(Does(do), TASK, policy, tasks=Whole())))
        assert (episode.answer, len(episode.turns)) == ("4", 1)

    asyncio.run(go())


@pytest.mark.parametrize("stream", [False, True])
def test_anthropics_api_has_tools_and_continues_its_conversation(stream: bool) -> None:
    import anthropic  # seconds

    async def do(endpoints: Endpoints) -> str:
        url = endpoints["solver"].anthropic
        async with anthropic.AsyncAnthropic(base_url=url, api_key="n", max_retries=0) as client:
            asked: Any = {"model": "any", "max_tokens": 50, "system": "Add.", "tools": [ADD], "messages": [*ASK]}
            if stream:
                async with client.messages.stream(**asked) as events:
                    first = await events.get_final_message()
            else:
                first = await client.messages.create(**asked)
            kinds = [block.type for block in first.content]
            assert (kinds, first.stop_reason) == (["thinking", "text", "tool_use"], "tool_use")
            call: Any = first.content[2]
            assert (call.name, call.input) == ("add", {"a": 2, "b": 2})
            result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "4", "is_error": True}
            asked["messages"] += [
                {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in first.content]},
                {"role": "user", "content": [result]},
            ]
            last = await client.messages.create(**asked)
            assert (last.content[0].text, last.stop_reason) == ("4", "end_turn")  # type: ignore[union-attr]
            assert last.usage.output_tokens == 1
            return "4"

    turns = one(sampled(do, [CALLS, "4"])).turns
    assert [turn.slot for turn in turns] == ["0", "1"]
    assert [message["role"] for message in turns[1].observation] == ["system", "user", "assistant", "tool"]
    assert turns[1].observation[-1]["content"] == "Error:\n4"
    assert turns[0].parameters["max_tokens"] == 50


def test_a_url_ends_with_its_episode() -> None:
    kept: list[str] = []

    async def late(endpoints: Endpoints) -> str:
        if kept:
            async with httpx.AsyncClient() as client:
                gone = await client.post(f"{kept[0]}/chat/completions", json={"messages": ASK})
            assert (gone.status_code, gone.json()["error"]["code"]) == (410, "episode_ended")
            assert gone.headers["x-should-retry"] == "false"
        kept.append(endpoints["solver"].openai)
        await chat(endpoints)
        return "4"

    async def both() -> None:
        for _ in range(2):
            context = ScriptedContext(Does(late), TASK, ScriptedPolicy({"solver": "4"}), tasks=Whole())
            one(await Independent(1).sample(context))

    asyncio.run(both())
    first, second = (url.split("/e/")[1].split("/")[0] for url in kept)
    assert first != second
    assert min(len(first), len(second)) >= 32


def test_a_request_in_progress_ends_with_its_episode() -> None:
    """The workflow does not wait for its second request, which the policy never answers."""
    answered: list[int] = []

    async def do(endpoints: Endpoints) -> str:
        await chat(endpoints)

        async def abandoned() -> None:
            async with httpx.AsyncClient(timeout=20) as client:
                reply = await client.post(f"{endpoints['judge'].openai}/chat/completions", json={"messages": ASK})
                answered.append(reply.status_code)

        tasks.append(asyncio.get_running_loop().create_task(abandoned(), context=outside))
        await asyncio.sleep(0.3)
        return "4"

    outside, tasks = contextvars.Context(), []  # type: ignore[var-annotated]

    async def go() -> None:
        context = Slow(Does(do), TASK, ScriptedPolicy({"solver": "4", "judge": "yes"}), tasks=Whole())
        context.late = (2,)
        one(await Independent(1).sample(context))
        await asyncio.wait_for(tasks[0], 5)

    asyncio.run(go())
    assert answered == [410]


def listeners() -> set[tuple[str, int]]:
    """Addresses and ports on which this process listens, also by other tests."""
    connections = psutil.Process().net_connections("inet")
    return {(conn.laddr.ip, conn.laddr.port) for conn in connections if conn.status == psutil.CONN_LISTEN}


def test_it_listens_on_loopback_only_and_survives_many_episodes_at_once() -> None:
    """60 episodes, two requests each, over sockets."""
    former, listening = listeners(), set[tuple[str, int]]()

    async def do(endpoints: Endpoints) -> str:
        async with httpx.AsyncClient(limits=httpx.Limits(max_connections=1), timeout=60) as client:
            for content in ("2 + 2?", "again"):
                body = {"messages": [{"role": "user", "content": content}]}
                reply = await client.post(f"{endpoints['solver'].openai}/chat/completions", json=body)
                assert reply.status_code == 200, reply.text
        if not listening:
            listening.update(listeners() - former)
        return str(reply.json()["choices"][0]["message"]["content"])

    sample = sampled(do, episodes=60)
    assert not sample.failures, sample.failures[0].trace
    assert [episode.score for episode in sample.episodes] == [1.0] * 60
    assert {len(episode.turns) for episode in sample.episodes} == {2}
    assert {address for address, _ in listening} == {"127.0.0.1"}


PROGRAM = textwrap.dedent("""
    import openai, sys
    client = openai.OpenAI(max_retries=0)  # from the environment
    messages = [{"role": "user", "content": sys.stdin.read()}]
    for _ in range(2):
        reply = client.chat.completions.create(model="any", messages=messages).choices[0].message
        messages += [reply, {"role": "user", "content": "sure?"}]
    print(reply.content)
""")


def test_a_real_program_with_the_openai_package_is_an_agent(tmp_path: Path) -> None:
    program = tmp_path / "agent.py"
    program.write_text(PROGRAM)

    async def do(endpoints: Endpoints) -> str:
        done = await process(sys.executable, program, environ=endpoints["solver"].environ, input="2 + 2?", seconds=60)
        return done.stdout.strip()

    episode = one(sampled(do))
    assert episode.score == 1.0
    assert [turn.slot for turn in episode.turns] == ["0", "1"]
    assert episode.turns[0].observation == ({"role": "user", "content": "2 + 2?"},)


def test_a_program_that_dies_or_takes_too_long_fails_its_episode_only(tmp_path: Path) -> None:
    async def dies(endpoints: Endpoints) -> str:
        await chat(endpoints)
        with pytest.raises(FileNotFoundError):
            await process("no-such-program")
        return (await process("sh", "-c", "echo no >&2; kill -9 $$")).stdout

    assert "Command 'sh' died with <Signals.SIGKILL: 9>. no" in failure(sampled(dies)).detail

    ended: list[bool] = []

    async def hangs(endpoints: Endpoints) -> str:
        await chat(endpoints)
        started = tmp_path / "started"
        try:
            await process("sh", "-c", f"sleep 77 & echo $! > {started}; wait", seconds=0.5)
        finally:
            wait_until(lambda: not alive(int(started.read_text())), 2)
            ended.append(True)
        return "4"

    assert "'sh' took longer than 0.5 s" in failure(sampled(hangs)).detail
    assert ended == [True]


@pytest.mark.parametrize(("after", "end"), [("", nullcontext()), ("wait", pytest.raises(TimeoutError))])
async def test_of_a_program_no_process_stays_and_the_end_of_its_output(tmp_path: Path, after: str, end: Any) -> None:
    """A session of its own is in no group of the program, and holds its output open."""
    started, much = tmp_path / "started", "head -c 40000000 /dev/zero"
    tracemalloc.start()
    try:
        with end:
            command = f"setsid sleep 77 & echo $! > {started}; {much}; echo end; {after}"
            done = await asyncio.wait_for(process("sh", "-c", command, input="unread" * 99999, seconds=2), 20)
            assert (len(done.stdout), done.stdout[-4:]) == (2**20, "end\n")
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()
    wait_until(lambda: not alive(int(started.read_text())), 2)


def test_a_request_without_the_token_is_answered_before_its_body() -> None:
    async def do(endpoints: Endpoints) -> str:
        url = httpx.URL(endpoints["solver"].openai)
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(b"POST /e/A/solver/v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5000000\r\n\r\n")
        reply = await asyncio.wait_for(reader.read(), 20)  # to its end: the connection is closed
        writer.close()
        assert reply.startswith(b"HTTP/1.1 410")
        await chat(endpoints)
        return "4"

    one(sampled(do))
