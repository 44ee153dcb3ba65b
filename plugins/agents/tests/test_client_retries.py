"""Requests that a client repeats after a time-out, and replies that it gives back with other white space."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from marl_verl_agents import openai_client, transport
from marl_verl_agents.gateway import ExternalWorkflow
from marl_verl_testing import ScriptedPolicy
from marl_verl_testing.scripted import ScriptedContext

from marl_verl.algo.sampling import Independent
from marl_verl.episode import Act, Action, Run, Workflow
from marl_verl.tasks.base import Task
from plugins.agents.tests.test_client_keys import APIS, LEAST, MESSAGES, RESPONSES, TOOLS, USER

TASK = Task("t", "2 + 2?")
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
        reply = (await client.post(f"{base}{path}", json=body)).json()
        body[key] = [*body[key], *given_back(path, reply)]


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
    context = ScriptedContext(kind(path), TASK, ScriptedPolicy({"solver": REPLY}))
    sample = asyncio.run(Independent(1).sample(context))
    assert not sample.failures, sample.failures[0].trace
    turns = sample.episodes[0].turns
    assert [turn.slot for turn in turns] == ["0", "1", "2"]
    said = [turn.action.message for turn in turns]
    assert said[0]["content"] == REPLY["content"]
    assert [turns[2].observation[at] for at in (1, 3)] == said[:2]
    assert turns[1].act.former is turns[0].action
    assert turns[2].act.former is turns[1].action


@pytest.mark.parametrize(
    "changed",
    [
        {"content": "s o"},
        {"content": "so", "reasoning_content": "other"},
        {"content": "so", "tool_calls": [{"id": "1", "function": {"name": "add", "arguments": "{}"}}]},
    ],
)
def test_a_reply_that_a_client_changed_stays_changed(changed: Any) -> None:
    class Changes(Workflow):
        async def run(self, task: Task, team: Any) -> str:
            client = openai_client(team, "solver").chat.completions
            await client.create(model="m", messages=[USER])
            await client.create(model="m", messages=[USER, {"role": "assistant", **changed}, USER])
            return "4"

    context = ScriptedContext(Changes(), TASK, ScriptedPolicy({"solver": " so "}))
    (episode,) = asyncio.run(Independent(1).sample(context)).episodes
    assert episode.turns[1].observation[1]["content"] == changed["content"]


class Slow(ScriptedContext):
    """Policies that do not answer requests whose number is in `late`."""

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


def test_a_choice_that_was_sampled_before_the_timeout_is_no_second_turn() -> None:
    context = Slow(Retries(APIS[0], n=2), TASK, ScriptedPolicy({"solver": lambda act: act.slot.partition("#")[0]}))
    context.late = (2,)
    (episode,) = asyncio.run(Independent(1).sample(context)).episodes
    assert sorted((turn.slot, turn.turn) for turn in episode.turns) == [
        *(("choice0", 0), ("choice0.choice0", 0), ("choice0.choice1", 0), ("choice1", 0)),
    ]


def test_an_act_that_is_cancelled_takes_no_turn() -> None:
    """Another act takes its place, and an action that comes late for the cancelled one is not its."""

    class Cancels(Workflow):
        async def run(self, task: Task, team: Any) -> str:
            await team["solver"].act("first", slot="x")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await team["solver"].act("second", slot="x")
            return str((await team["solver"].act("third", slot="x")).text)

    async def go() -> Any:
        async with Run(Cancels(), TASK, ["solver"]) as run:
            (first,) = await run.next() or ()
            run.resolve(first, Action("1"))
            (late,) = await run.next() or ()
            (act,) = await run.next() or ()
            run.resolve(late, Action("late"))
            run.resolve(act, Action("3"))
            assert await run.next() is None
            return run, late, act

    run, late, act = asyncio.run(go())
    assert late.key == act.key == ("solver", "x#1")
    assert act.former == Action("1")
    assert run.answer == "3"
    assert [(turn.observation[0]["content"], turn.index) for turn, _ in run.turns] == [("first", 0), ("third", 1)]
