"""The replay engine: guarantees for authors of workflows and samplers."""

from __future__ import annotations

import asyncio
import gc
import random
import time
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marl_verl_testing import ScriptedPolicy, scripted_action, shown
from marl_verl_testing.workflows import Programmed, talkers, workflows

from marl_verl.algo import sampling
from marl_verl.episode import (
    Act,
    Action,
    ActRecord,
    Journal,
    ReplayMismatch,
    Run,
    Team,
    Workflow,
    WorkflowError,
)
from marl_verl.episode.errors import Limits
from marl_verl.tasks.task import Task

TASK = Task("t1", "2 + 2 = ?")
Body = Callable[[Task, Team], Awaitable[Any]]


def echo(act: Act) -> str:
    """Answers with the agent's name and the last ten characters of its observation."""
    return f"{act.agent}{act.slot}<{shown(act)[-10:]}>"


POLICY = ScriptedPolicy({"planner": echo, "worker": echo, "judge": echo})
AGENTS = POLICY.agents


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
    both = await team.act({"judge": " ".join(parts), "planner": "wait"})
    return both["judge"].text


def drive(run: Run, order: random.Random | None = None, policy: ScriptedPolicy = POLICY) -> Run:
    """To the end, with the actions arriving in a random order."""

    async def act(act: Act) -> Action:
        for _ in range(order.randrange(30) if order else 0):
            await asyncio.sleep(0)
        return policy.act(act)

    async def go() -> None:
        async with run:
            await sampling.drive(run, act)

    asyncio.run(go())
    return run


def body(fn: Body) -> Workflow:
    return Plain(fn)


def failure(fn: Body, **options: Any) -> WorkflowError:
    with pytest.raises(WorkflowError) as caught:
        drive(Run(body(fn), TASK, AGENTS, **options))
    return caught.value


def test_sequential_acts_are_returned_one_at_a_time_and_numbered() -> None:
    run = drive(Run(SolverVerifier(), TASK, AGENTS))
    keys = [(act.agent, act.slot, act.turn, act.index) for act, _ in run.turns]
    planner, judge = "planner", "judge"
    expected = [
        (planner, "0", 0, 0),
        (judge, "0", 0, 1),
        (planner, "1", 1, 2),
        (judge, "1", 1, 3),
        (planner, "2", 2, 4),
    ]
    assert keys == expected
    assert run.turns[0][0].observation == ({"role": "user", "content": "2 + 2 = ?"},)
    assert run.turns[2][0].observation[0] == {"role": "system", "content": "retry"}
    assert run.answer == run.turns[-1][1].text


def test_a_joint_move_gives_all_its_acts_at_once() -> None:
    async def work(task: Task, team: Team) -> str:
        both = await team.act({"planner": "a", "worker": "b"})
        return f"{both['planner'].text} {both['worker'].text}"

    async def go() -> None:
        run = Run(body(work), TASK, AGENTS)
        acts = await run.next()
        assert acts is not None
        assert [(act.agent, act.joint, act.index) for act in acts] == [("planner", 0, 0), ("worker", 0, 1)]
        for act in reversed(acts):
            run.resolve(act, POLICY.act(act))
        assert await run.next() is None
        assert run.answer == "planner0<a> worker0<b>"
        assert [act.agent for act, _ in run.turns] == ["planner", "worker"]

    asyncio.run(go())


def test_concurrent_lanes_share_their_turn_numbers() -> None:
    run = drive(Run(body(planned_lanes), TASK, AGENTS))
    workers = [(act.slot, act.turn) for act, _ in run.turns if act.agent == "worker"]
    assert workers == [("part0", 0), ("part1", 0), ("part2", 0), ("part0#1", 1), ("part1#1", 1), ("part2#1", 1)]
    assert [act.index for act, _ in run.turns] == list(range(9))


@given(workflows(), st.integers(0, 2**16))
@settings(max_examples=60)
def test_any_workflow_is_the_same_in_any_order_and_from_any_prefix(workflow: Programmed, arrival: int) -> None:
    order, talk = random.Random(arrival), talkers()
    first = drive(Run(workflow, TASK, talk.agents, seed=3), policy=talk)
    again = drive(Run(workflow, TASK, talk.agents, seed=3), order, talk)
    prefix = first.journal.prefix(order.randrange(len(first.journal) + 1))
    restarted = drive(Run(workflow, TASK, talk.agents, prefix), order, talk)
    for run in (again, restarted):
        assert (run.journal, run.answer, run.turns) == (first.journal, first.answer, first.turns)
        assert run.proposals == first.proposals


def test_a_whole_journal_replays_without_asking() -> None:
    first = drive(Run(body(planned_lanes), TASK, AGENTS))

    async def go() -> None:
        run = Run(body(planned_lanes), TASK, AGENTS, first.journal, strict=True)
        assert await run.next() is None
        assert (run.answer, run.journal) == (first.answer, first.journal)

    asyncio.run(go())


def test_masking_an_action_asks_only_for_acts_whose_observation_changed() -> None:
    async def work(task: Task, team: Team) -> str:
        one = await team["worker"].act("part one", slot="one")
        two = await team["worker"].act("part two", slot="two")
        check = await team["judge"].act(one.text)
        return (await team["planner"].act(f"{check.text} {two.text}")).text

    first = drive(Run(body(work), TASK, AGENTS))

    async def go() -> None:
        act = first.journal.acts()[0].act
        record = ActRecord(act, scripted_action(act, "masked"))
        masked = Journal((record, *first.journal.records[1:]), first.journal.seed)
        run = Run(body(work), TASK, AGENTS, masked)
        asked = []
        while (acts := await run.next()) is not None:
            for each in acts:
                asked.append(str(each))
                run.resolve(each, POLICY.act(each))
        assert asked == ["act judge:0", "act planner:0"]
        assert run.turns[1] == first.turns[1]

    asyncio.run(go())


def test_strict_makes_new_calls_but_none_of_a_recorded_function_with_other_arguments() -> None:
    def calling(*calls: tuple[Callable[..., Any], Any]) -> Workflow:
        async def work(task: Task, team: Team) -> str:
            await team["worker"].act(task.prompt)
            return str([await team.call(fn, argument) for fn, argument in calls])

        return body(work)

    journal = drive(Run(calling((abs, -4)), TASK, AGENTS)).journal
    assert drive(Run(calling((abs, -4), (len, "ab")), TASK, AGENTS, journal, strict=True)).answer == "[4, 2]"
    assert drive(Run(calling((abs, -5)), TASK, AGENTS, journal)).answer == "[5]"
    with pytest.raises(ReplayMismatch, match=r"call builtins:abs\(-5\) is not in the journal, which has call"):
        drive(Run(calling((abs, -5)), TASK, AGENTS, journal, strict=True))


def test_calls_are_made_once_sync_or_async() -> None:
    made: list[Any] = []

    def double(number: int) -> tuple[int, int]:
        made.append(number)
        return number, 2 * number

    async def slow(task: Task) -> str:
        await asyncio.sleep(0)
        made.append(task.id)
        return task.prompt

    def ticket() -> int:
        made.append("ticket")
        return len(made)

    async def work(task: Task, team: Team) -> Any:
        pair = await team.call(double, 4)
        pair.append(1)  # the record does not change with it
        await team["worker"].act(str(pair))
        tickets = [await team.call(ticket), await team.call(ticket)]  # equal calls are distinguished by their number
        return [pair, await team.call(slow, task), await team.call(double, 4), tickets]

    first = drive(Run(body(work), TASK, AGENTS))
    assert first.answer == [[4, 8, 1], TASK.prompt, [4, 8], [2, 3]]
    assert made == [4, "ticket", "ticket", "t1", 4]
    assert drive(Run(body(work), TASK, AGENTS, first.journal)).answer == first.answer
    assert made == [4, "ticket", "ticket", "t1", 4]


def test_randomness_is_seeded_and_repeats_on_replay() -> None:
    async def work(task: Task, team: Team) -> list[float]:
        draws = [team.random.random()]
        await team["worker"].act("x")
        return [*draws, team.random.random(), team.random_for("dice").random()]

    def answer(task: Task, seed: int, journal: Journal | None = None) -> Any:
        return drive(Run(body(work), task, AGENTS, journal, seed)).answer

    assert answer(TASK, 1) == answer(TASK, 1)
    assert answer(TASK, 1) != answer(TASK, 2)
    assert answer(TASK, 1) != answer(Task("t2", ""), 1)
    journal = drive(Run(body(work), TASK, AGENTS, seed=1)).journal
    assert answer(TASK, 9, journal) == answer(TASK, 1)  # the journal's seed


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


def test_an_act_that_the_workflow_gives_up_is_no_turn() -> None:
    async def work(task: Task, team: Team) -> str:
        fast = asyncio.create_task(team["worker"].act("fast"))
        slow = asyncio.create_task(team["judge"].act("slow"))
        done, _ = await asyncio.wait([fast, slow], return_when=asyncio.FIRST_COMPLETED)
        slow.cancel()
        await asyncio.wait([slow])
        final = await team["planner"].act(done.pop().result().text)
        return final.text

    async def go() -> None:
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

    asyncio.run(go())


def test_a_finished_workflow_does_not_wait_for_acts_that_it_started() -> None:
    async def work(task: Task, team: Team) -> str:
        started = asyncio.ensure_future(team["worker"].act("slow"))
        answer = (await team["planner"].act("fast")).text
        return answer if not started.done() else "late"

    async def act(act: Act) -> Action:
        if act.agent == "worker":
            await asyncio.Event().wait()
        return POLICY.act(act)

    async def go() -> None:
        async with Run(body(work), TASK, AGENTS) as run:
            await asyncio.wait_for(sampling.drive(run, act), timeout=20)
            assert [act.agent for act, _ in run.turns] == ["planner"]

    asyncio.run(go())


def test_supplying_an_act_twice_is_an_error() -> None:
    async def go() -> None:
        async with Run(SolverVerifier(), TASK, AGENTS) as run:
            (act,) = await run.next() or ()
            run.resolve(act, POLICY.act(act))
            with pytest.raises(ValueError, match="is not waiting for act planner:0"):
                run.resolve(act, POLICY.act(act))

    asyncio.run(go())


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


def test_a_cancelled_driver_can_close_its_run() -> None:
    async def go() -> None:
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

    asyncio.run(go())


def test_overhead_of_an_act_is_small() -> None:
    """Aim: 100 microseconds (measured: about 20). The bound is ten times that, for a busy machine."""

    class Long(Workflow):
        async def run(self, task: Task, team: Team) -> Any:
            for _ in range(500):
                action = await team["worker"].act("x" * 200)
            return action.text

    action = scripted_action(Act("worker", "0", 0, 0, ({"role": "user", "content": "x"},)), "y" * 50)

    async def go() -> None:
        run = Run(Long(), TASK, AGENTS)
        while (acts := await run.next()) is not None:
            run.resolve(acts[0], action)

    start = time.process_time()
    asyncio.run(go())
    assert (time.process_time() - start) / 500 < 1e-3
