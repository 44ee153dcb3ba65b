"""The replay engine: acts, calls and draws in any order, and replays."""

import asyncio
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from marl_verl_testing.workflows import Programmed, talkers, workflows

from marl_verl.episode import Journal, Run, Team
from marl_verl.tasks import Task
from tests.plain_workflows import AGENTS, POLICY, TASK, SolverVerifier, body, drive, planned_lanes


def test_sequential_acts_are_returned_one_at_a_time_and_numbered() -> None:
    run = drive(Run(SolverVerifier(), TASK, AGENTS))
    keys = [(act.agent, act.slot, act.turn, act.index) for act, _ in run.turns]
    assert keys == [(("planner", "judge")[n % 2], str(n // 2), n // 2, n) for n in range(5)]
    assert run.turns[0][0].observation == ({"role": "user", "content": "2 + 2 = ?"},)
    assert run.turns[2][0].observation[0] == {"role": "system", "content": "retry"}
    assert run.answer == run.turns[-1][1].text


async def test_a_joint_move_gives_all_its_acts_at_once() -> None:
    async def work(task: Task, team: Team) -> str:
        both = await team.act({"planner": "a", "worker": "b"})
        return f"{both['planner'].text} {both['worker'].text}"

    run = Run(body(work), TASK, AGENTS)
    acts = await run.next()
    assert acts is not None
    assert [(act.agent, act.joint, act.index) for act in acts] == [("planner", 0, 0), ("worker", 0, 1)]
    for act in reversed(acts):
        run.resolve(act, POLICY.act(act))
    assert await run.next() is None
    assert run.answer == "planner0<a> worker0<b>"
    assert [act.agent for act, _ in run.turns] == ["planner", "worker"]


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
