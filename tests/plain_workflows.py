"""Workflows made of plain functions, and policies that answer them."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from marl_verl_testing import ScriptedPolicy, shown

from marl_verl.algo import sampling
from marl_verl.episode import Act, Action, Run, Team, Workflow, WorkflowError
from marl_verl.tasks import Task, TaskSet
from tests.loops import completed

TASK = Task("t1", "2 + 2 = ?")
Body = Callable[[Task, Team], Awaitable[Any]]


def echo(act: Act) -> str:
    """Answers with the agent's name and the last ten characters of its observation."""
    return f"{act.agent}{act.slot}<{shown(act)[-10:]}>"


POLICY = ScriptedPolicy({"planner": echo, "worker": echo, "judge": echo})
AGENTS = POLICY.agents


class Gold(TaskSet):
    def score(self, task: Task, answer: Any) -> float:
        return float(answer == task.data["gold"])


class Plain(Workflow):
    """A workflow made of a plain function."""

    body: Any

    async def run(self, task: Task, team: Team) -> Any:
        return await self.body(task, team)


class SolverVerifier(Workflow):
    rounds: int = 2

    async def run(self, task: Task, team: Team) -> Any:
        draft = await team["planner"].act(task.prompt)
        for _ in range(self.rounds):
            verdict = await team["judge"].act(f"{task.prompt}: {draft.text}")
            if verdict.text == "yes":
                break
            retry = [{"role": "system", "content": "retry"}, {"role": "user", "content": verdict.text}]
            draft = await team["planner"].act(retry)
        return draft.text


async def planned_lanes(task: Task, team: Team) -> str:
    """A planner, three concurrent workers of two turns each in named slots, a joint move, a call."""
    plan = await team["planner"].act(task.prompt)

    async def lane(number: int) -> str:
        first = await team["worker"].act(f"{plan.text} part {number}", slot=f"part{number}")
        team.propose(number)
        length = await team.call(len, first.text)
        dice = team.random_for(f"part{number}").randrange(100)
        return (await team["worker"].act(f"{first.text} {length} {dice}", slot=f"part{number}")).text

    parts = await asyncio.gather(*(lane(number) for number in range(3)))
    return (await team.act({"judge": " ".join(parts), "planner": "wait"}))["judge"].text


def drive(run: Run, order: random.Random | None = None, policy: ScriptedPolicy = POLICY) -> Run:
    """To the end, with the actions arriving in a random order."""

    async def act(act: Act) -> Action:
        for _ in range(order.randrange(30) if order else 0):
            await asyncio.sleep(0)
        return policy.act(act)

    async def go() -> None:
        async with run:
            await sampling.drive(run, act)

    completed(go())
    return run


def body(fn: Body) -> Workflow:
    return Plain(fn)


def failure(fn: Body, **options: Any) -> WorkflowError:
    with pytest.raises(WorkflowError) as caught:
        drive(Run(body(fn), TASK, AGENTS, **options))
    return caught.value
