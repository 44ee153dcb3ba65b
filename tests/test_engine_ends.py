"""The replay engine: workflows that break its rules, acts that are given up, and runs that are dropped."""

import asyncio
import gc
import warnings

import pytest

from marl_verl.algo import sampling
from marl_verl.episode import Act, Action, ReplayMismatch, Run, Team
from marl_verl.episode.errors import Limits
from marl_verl.tasks import Task
from tests.plain_workflows import AGENTS, POLICY, TASK, Body, SolverVerifier, body, failure, planned_lanes


async def unnamed_twice(task: Task, team: Team) -> str:
    await asyncio.gather(team["worker"].act("x"), team["worker"].act("y"))
    return ""


async def odd_result(task: Task, team: Team) -> str:
    return str(await team.call(set))


async def shared_dice(task: Task, team: Team) -> str:
    async def lane() -> float:
        return team.random.random()

    return str(await asyncio.gather(lane(), lane()))


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (unnamed_twice, "acts twice concurrently without naming the slots"),
        (odd_result, "call builtins:set must return a JSON value"),
        (shared_dice, "use team.random_for"),
    ],
)
def test_bad_workflows_raise(fn: Body, message: str) -> None:
    assert message in str(failure(fn, limits=Limits(acts=20)))


def test_a_concurrent_workflow_that_differs_on_replay_is_caught() -> None:
    calls = iter(range(100))

    async def work(task: Task, team: Team) -> str:
        number = next(calls)  # state outside the journal
        await asyncio.gather(team["worker"].act(f"try {number}", slot="a"), team["judge"].act("y", slot="b"))
        return "done"

    error = failure(work)
    assert isinstance(error, ReplayMismatch)
    assert "act worker:a is shown another observation on replay" in str(error)


def test_an_act_inside_a_recorded_call_of_a_concurrent_workflow_is_refused() -> None:
    async def work(task: Task, team: Team) -> str:
        async def ask() -> str:
            return (await team["judge"].act("inside")).text

        _, action = await asyncio.gather(team.call(ask), team["worker"].act("outside"))
        return str(action.text)

    assert "act judge:0 was made inside a recorded call" in str(failure(work))


async def test_an_act_that_the_workflow_gives_up_is_no_turn() -> None:
    async def work(task: Task, team: Team) -> str:
        fast = asyncio.create_task(team["worker"].act("fast"))
        slow = asyncio.create_task(team["judge"].act("slow"))
        done, _ = await asyncio.wait([fast, slow], return_when=asyncio.FIRST_COMPLETED)
        slow.cancel()
        await asyncio.wait([slow])
        return (await team["planner"].act(done.pop().result().text)).text

    run = Run(body(work), TASK, AGENTS)
    (fast,) = await run.next() or ()
    (slow,) = await run.next() or ()
    run.resolve(fast, POLICY.act(fast))
    (final,) = await run.next() or ()
    run.resolve(slow, POLICY.act(slow))  # too late: dropped
    run.resolve(final, POLICY.act(final))
    assert await run.next() is None
    assert [(act.agent, act.index) for act, _ in run.turns] == [("worker", 0), ("planner", 1)]
    assert [record.act.index for record in run.journal.acts()] == [0, 1]


async def test_a_finished_workflow_does_not_wait_for_acts_that_it_started() -> None:
    async def work(task: Task, team: Team) -> str:
        started = asyncio.ensure_future(team["worker"].act("slow"))
        answer = (await team["planner"].act("fast")).text
        return answer if not started.done() else "late"

    async def act(act: Act) -> Action:
        if act.agent == "worker":
            await asyncio.Event().wait()
        return POLICY.act(act)

    async with Run(body(work), TASK, AGENTS) as run:
        await asyncio.wait_for(sampling.drive(run, act), timeout=20)
        assert [act.agent for act, _ in run.turns] == ["planner"]


async def test_supplying_an_act_twice_is_an_error() -> None:
    async with Run(SolverVerifier(), TASK, AGENTS) as run:
        (act,) = await run.next() or ()
        run.resolve(act, POLICY.act(act))
        with pytest.raises(ValueError, match="is not waiting for act planner:0"):
            run.resolve(act, POLICY.act(act))


def test_thousands_of_paused_runs_can_be_dropped_and_leave_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> None:
        unstarted = Run(body(planned_lanes), TASK, AGENTS)
        runs = [Run(body(planned_lanes), TASK, AGENTS) for _ in range(1000)]
        for number, run in enumerate(runs):
            (act,) = await run.next() or ()
            if number % 2:  # half of them stand in their lanes
                run.resolve(act, POLICY.act(act))
                await run.next()
        for run in [unstarted, *runs[:500]]:
            run.close()
        for _ in range(5):
            await asyncio.sleep(0)
        for run in runs[500:]:
            await run.aclose()
        assert len(asyncio.all_tasks()) == 1
        assert len(runs[1].journal) == 1  # what it had is still there

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(go())
        gc.collect()
    assert "destroyed" not in caplog.text  # asyncio logs a task that is destroyed while it is pending


async def test_a_cancelled_driver_can_close_its_run() -> None:
    run = Run(SolverVerifier(), TASK, AGENTS)
    await run.next()
    waiting = asyncio.create_task(run.next())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert [str(act) for act in run.waiting] == ["act planner:0"]
    await run.aclose()
    with pytest.raises(RuntimeError, match="closed"):
        await run.next()
