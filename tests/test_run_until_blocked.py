"""`Run.run_until_blocked`: when a run is blocked, independent of the arrival order of actions."""

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marl_verl_testing import scripted_action, shown

from marl_verl.episode import Act, Journal, ReplayMismatch, Run, Team, WorkflowError
from marl_verl.episode.errors import Limits
from marl_verl.tasks import Task
from tests.loops import completed as play
from tests.plain_workflows import Body, Plain

TASK = Task("t1", "question")
AGENTS = ("a", "b", "c")


def started(fn: Body, journal: Journal | None = None, **options: Any) -> Run:
    return Run(Plain(fn), TASK, AGENTS, journal, **options)


def names(acts: tuple[Act, ...] | None) -> list[str]:
    return [f"{act.agent}:{act.slot}" for act in acts or ()]


def answer(run: Run, agent: str, text: str = "done") -> None:
    act = next(act for act in run.waiting if act.agent == agent)
    run.resolve(act, scripted_action(act, text))


@pytest.mark.parametrize("depth", [1, 4, 8])
async def test_a_lane_deep_in_gathers_is_waited_for_while_another_is_blocked(depth: int) -> None:
    """Between two acts a deep lane takes many rounds of the loop: down, and up again, through every level."""

    async def work(task: Task, team: Team) -> str:
        async def deep(level: int, what: str) -> str:
            if level:
                return (await asyncio.gather(deep(level - 1, what), asyncio.sleep(0)))[0]
            return (await team["a"].act(what)).text

        async def lane() -> str:
            await deep(depth, "first")
            return await deep(depth, "second")

        return str(await asyncio.gather(lane(), team["b"].act("x")))

    async with started(work) as run:
        assert sorted(names(await run.run_until_blocked())) == ["a:0", "b:0"]
        answer(run, "a")
        assert sorted(names(await run.run_until_blocked())) == ["a:1", "b:0"]


def plain_tool(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


async def async_tool(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


@pytest.mark.parametrize("tool", [plain_tool, async_tool])
async def test_calls_under_way_are_waited_for_and_do_not_decide_the_order(tool: Callable[[float], Any]) -> None:
    """The lane whose call takes longest is still resolved first, and the journal has one order."""

    def work(pauses: tuple[float, ...]) -> Body:
        async def run(task: Task, team: Team) -> str:
            async def lane(agent: str, pause: float) -> str:
                for _ in range(2):  # the second call is made when the first is back
                    await team.call(tool, pause)
                return (await team[agent].act(f"after {agent}")).text

            return str(await asyncio.gather(*(lane(a, p) for a, p in zip(AGENTS, pauses, strict=True))))

        return run

    orders = []
    for pauses in ((0.03, 0.01, 0.02), (0.01, 0.02, 0.03)):
        async with started(work(pauses), limits=Limits(call_seconds=10)) as run:
            acts = await run.run_until_blocked()
            assert names(acts) == ["a:0", "b:0", "c:0"]
            assert [act.index for act in acts or ()] == [0, 1, 2]
            orders.append([pauses.index(float(call.arguments[1:-1])) for call in run.journal.calls()])
            async with started(work(pauses), run.journal, limits=Limits(call_seconds=10)) as again:
                assert (await again.run_until_blocked(), again.journal) == (acts, run.journal)
    assert orders[0] == orders[1]


async def test_a_rule_violation_is_raised_while_another_lane_waits_and_the_workflow_hides_it() -> None:
    async def work(task: Task, team: Team) -> str:
        async def lane() -> None:
            try:
                await team["missing"].act("x")
            except Exception:  # noqa: BLE001
                await asyncio.sleep(1000)

        await asyncio.gather(team["b"].act("y"), lane())
        return "end"

    async with started(work) as run:
        with pytest.raises(WorkflowError, match="no agent 'missing'"):
            await run.run_until_blocked()


@pytest.mark.parametrize("what", ["quiet", "async call", "threaded call", "nothing"])
async def test_cancelled_while_it_waits_it_can_be_asked_again_or_closed(what: str) -> None:
    release = asyncio.Event()

    async def work(task: Task, team: Team) -> str:
        if what == "async call":
            await team.call(release.wait)
        elif what == "threaded call":
            await team.call(plain_tool, 0.1)
        elif what == "nothing":
            await release.wait()
        return (await team["a"].act("x")).text

    async with started(work, limits=Limits(call_seconds=10)) as run:
        standing = asyncio.create_task(run.run_until_blocked())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        standing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await standing
        release.set()
        assert names(await run.run_until_blocked()) == ["a:0"]
    run = started(work, limits=Limits(call_seconds=10))
    release.clear()
    standing = asyncio.create_task(run.run_until_blocked())
    await asyncio.sleep(0)
    standing.cancel()
    await asyncio.wait([standing])
    await run.aclose()
    with pytest.raises(RuntimeError, match="closed"):
        await run.run_until_blocked()


async def test_a_state_that_no_replay_reaches_raises() -> None:
    tries = iter(range(10))

    async def work(task: Task, team: Team) -> str:
        async def lane(agent: str) -> str:
            await team.call(async_tool, 0.0)
            return (await team[agent].act(f"try {next(tries)}")).text

        return str(await asyncio.gather(lane("a"), lane("b")))

    async with started(work) as run:
        with pytest.raises(ReplayMismatch, match=r"waits for .* and its replay for"):
            await run.run_until_blocked()


# random workflows: sequences and gathers, nested, of acts, joint moves and calls of uncertain length
plans = st.recursive(
    st.sampled_from(["act", "joint", "call"]),
    lambda inner: st.tuples(st.sampled_from(["then", "beside"]), st.lists(inner, min_size=1, max_size=3)),
    max_leaves=9,
)


@given(plans, st.integers(0, 2**16), st.integers(0, 2**16))
@settings(max_examples=40)
def test_one_state_has_one_list_of_acts_whatever_arrived_first(plan: Any, one: int, other: int) -> None:
    """Two runs of one workflow, answered in other orders until the same acts are answered: they stand at the same acts,
    in the same order and with the same indices, and so does a restart from the journal of either."""

    def work(order: random.Random) -> Body:
        async def tool(what: str) -> str:
            for _ in range(order.randrange(8)):
                await asyncio.sleep(0)
            return f"{what}!"

        async def follow(part: Any, team: Team, path: str, seen: str) -> str:
            if part == "act":
                return (await team["a"].act(seen, slot=path)).text
            if part == "joint":
                return "+".join(each.text for each in (await team.act({"b": seen, "c": seen}, slot=path)).values())
            if part == "call":
                return str(await team.call(tool, f"{path} {seen}"))
            how, parts = part
            if how == "beside":
                return "|".join(
                    await asyncio.gather(*(follow(p, team, f"{path}.{i}", seen) for i, p in enumerate(parts)))
                )
            for number, each in enumerate(parts):
                seen = await follow(each, team, f"{path}.{number}", seen)
            return seen

        async def run(task: Task, team: Team) -> str:
            return await follow(plan, team, "p", (await team["a"].act(task.prompt)).text)

        return run

    def text(act: Act) -> str:
        return f"{act.agent}{act.slot[-6:]}<{shown(act)[-8:]}>"

    async def go() -> None:
        first, second = random.Random(one), random.Random(other)
        async with started(work(first)) as run:
            answered: list[Act] = []
            stop = first.randrange(12)
            while (acts := await run.run_until_blocked()) is not None and len(answered) < stop:
                act = first.choice(acts)
                answered.append(act)
                run.resolve(act, scripted_action(act, text(act)))
            keys = {act.key for act in answered}
            async with started(work(second)) as again:
                while (there := await again.run_until_blocked()) is not None:
                    open_ = [act for act in there if act.key in keys]
                    if not open_:
                        break
                    for act in second.sample(open_, second.randint(1, len(open_))):
                        again.resolve(act, scripted_action(act, text(act)))
                assert (there, again.journal) == (acts, run.journal)
            for journal in (run.journal, Journal(tuple(second.sample(run.journal.records, len(run.journal))))):
                async with started(work(second), journal) as restarted:
                    assert await restarted.run_until_blocked() == acts
                    if acts is not None:
                        assert restarted.journal == run.journal

    play(go())
