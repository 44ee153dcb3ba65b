"""A check that a sampler keeps its promises, without a model. docs/plugins.md has an example.

Use a workflow whose observations hold what was said before, and whose calls are pure functions: what a sampler did is
checked by running the workflow again from `node` and `parent`, apart from the sampler.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Awaitable
from random import Random
from typing import Any, TypeVar

from marl_verl.episode import Act, Action, Episode, ReplayMismatch, Run, Turn, Workflow, WorkflowError
from marl_verl.errors import MarlError
from marl_verl.sampling import Candidate, Failure, Sample, Sampler
from marl_verl.tasks.base import Task, TaskSet
from marl_verl.testing.given import SwitchedOff, awaitable, instance, lets_out, must
from marl_verl.testing.replayed import Worth, check_replayed, named
from marl_verl.testing.scripted import ScriptedContext, ScriptedPolicy, check_scene, replayable

T = TypeVar("T")
Request = tuple[int, tuple[str, str], Candidate, str]
"""(session, act's key, candidate, who takes it): what a request's seed is made of."""

SECONDS = 60.0  # after which a sampler hangs


def check_sampler(
    sampler: Sampler,
    workflow: Workflow,
    task: Task,
    policy: ScriptedPolicy,
    sessions: int = 4,
    *,
    tasks: TaskSet | None = None,
    seed: int = 0,
    orders: int = 3,
    asked: int | None = None,
    worth: Worth | None = None,
    may_fail: bool = False,
    **options: Any,
) -> Sample:
    """Assert what every sampler promises; call it from a test (it starts an event loop).

    First, that the workflow is fit for it: run again from any part of its journal, it does the same (`check_workflow`
    looks closer). And that something is sampled: it asks for actions, makes episodes of them, and no attempt fails.

    Rows: keys are unique; every action is at most one row, and its tokens are in the rows, in `extra_tokens`, or those
    of a failed attempt; no two requests have one seed; a parent is a node, and its rows come first.

    Replayed, apart from the sampler: siblings share one observation, which is that of the state after their parent's
    actions, so that states advance and later agents see earlier ones; an episode's turns are a path, and its journal
    has their actions and no others; every row has the rewards of the state that it, and no other, leads to.

    Run again: with actions arriving in `orders` other orders the sample is the same; one failing request becomes a
    failure, and what is left keeps all of the above; cancelling propagates; and nothing is left running.

    Args:
        policy: its texts should depend on (act, session, candidate): equal candidates hide mistakes.
        sessions: attempts wanted of the sampler.
        tasks, seed: as for `ScriptedContext`.
        asked: how many actions it has to ask for, where that is known.
        worth: for a sampler that branches, (run at the parent, run at the node) -> the answer that a state before the
            workflow's end is to be scored by, None for no answer. Without it only the rewards of ends are checked.
        may_fail: the workflow may fail with some actions, or with all: where you try many that were made at random.
        options: of `ScriptedContext`: rewards, mix, limits.

    Returns:
        The sample.

    Raises:
        AssertionError: a promise broken: which, and where.
        ReplayMismatch: the workflow is not deterministic.
        MarlError: an attempt failed, undisturbed: why; or an argument is of another kind.
    """
    instance(sampler, Sampler, "MySampler(), of a class MySampler(Sampler)")
    check_scene(workflow, task, policy, tasks)

    def watched(**how: Any) -> _Watched:
        return _Watched(workflow, task, policy, sessions, tasks, seed, **options, **how)

    async def check() -> Sample:
        try:
            await _in_time(replayable(workflow, task, policy, seed, orders=0), "workflow")
        except ReplayMismatch:
            raise
        except WorkflowError:
            pass  # comes up when it is sampled
        context = watched()
        sample, requests = await _sampled(sampler, context), context.requests
        if (mismatch := context.mismatch()) is not None:
            raise mismatch
        if not may_fail:
            if sample.failures:
                raise MarlError(f"an attempt failed, and nothing disturbed it: {sample.failures[0].detail}")
            must(requests, "the sampler asked for no action")
            must(sample.episodes, f"the sampler asked for {len(requests)} actions, and its sample has no episode")
        must(asked in (None, len(requests)), f"the sampler asked for {len(requests)} actions, not {asked}")
        _check_rows(sample, context)
        await check_replayed(sample, context, sampler, worth)
        for order in range(orders):
            shuffled = watched(order=order)
            again = await _sampled(sampler, shuffled)
            _same(sample, again, details=not (context.concurrent() or shuffled.concurrent()))
            same = sorted(map(repr, shuffled.requests)) == sorted(map(repr, requests))
            must(same, "with actions arriving in another order, it asks for other actions")
        if requests:
            await _check_failing(sampler, watched(broken=requests[len(requests) // 2]), worth)
            await _check_cancelling(sampler, watched(stuck=len(requests) // 2))
        return sample

    return asyncio.run(check())


class _Watched(ScriptedContext):
    """Rollouts that know who asked for what, and disturb: by `order` of arrival, a request that is `broken`, or number
    `stuck` that is never answered."""

    def __init__(
        self, *args: Any, order: int | None = None, broken: Request | None = None, stuck: int | None = None, **more: Any
    ) -> None:
        super().__init__(*args, **more)
        self.order, self.broken, self.stuck = order, broken, stuck
        self.requests: list[Request] = []
        self.request_of: dict[int, Request] = {}  # by the id of the action that was given
        self.runs: list[Run] = []
        self.is_stuck = asyncio.Event()

    def start(self, *args: Any, **more: Any) -> Run:
        self.runs.append(super().start(*args, **more))
        return self.runs[-1]

    def mismatch(self) -> ReplayMismatch | None:
        """Of the first run that did something else when started again: the sampler may have made it a failure."""
        errors = (run._fatal for run in self.runs)
        return next((error for error in errors if isinstance(error, ReplayMismatch)), None)

    def concurrent(self) -> bool:
        """Whether a run had acts in tasks beside each other."""
        return any(run._concurrent for run in self.runs)

    async def act(self, act: Act, session: int, candidate: Candidate = 0, agent: str | None = None) -> Action:
        request = session, act.key, candidate, agent or act.agent
        self.requests.append(request)
        if self.stuck == len(self.requests) - 1:
            self.is_stuck.set()
            await asyncio.Event().wait()
        for _ in range(0 if self.order is None else Random(repr((self.order, request))).randrange(20)):
            await asyncio.sleep(0)
        if request == self.broken:
            raise SwitchedOff("a request that check_sampler lets fail")
        action = await super().act(act, session, candidate, agent)
        self.request_of[id(action)] = request
        return action


async def _in_time(work: Awaitable[T], what: str) -> T:
    limit = asyncio.timeout(SECONDS)
    try:
        async with limit:
            return await work
    except TimeoutError:
        must(not limit.expired(), f"the {what} is not done after {SECONDS:g} s: it hangs")
        raise


async def _sampled(sampler: Sampler, context: _Watched) -> Sample:
    """What the sampler gives, with nothing left running."""
    before = asyncio.all_tasks()
    sample = await _in_time(_called(sampler, context), "sampler")
    await _nothing_left(before, "when it has returned")
    return sample


async def _called(sampler: Sampler, context: _Watched) -> Sample:
    """What the sampler gives, if it is a sample."""
    found = await awaitable(sampler.sample(context), "`sample`")
    must(isinstance(found, Sample), f"`sample` must return a Sample, it returned {found!r:.60}")
    for name, kind in (("episodes", Episode), ("failures", Failure)):
        for each in getattr(found, name):
            must(isinstance(each, kind), f"the sample's `{name}` must be {kind.__name__}s, one is {each!r:.60}")
    return found


async def _check_failing(sampler: Sampler, broken: _Watched, worth: Worth | None) -> None:
    try:
        left = await _sampled(sampler, broken)
    except Exception as error:
        if not lets_out(error):
            raise
        message = f"a request failed, and comes out of `sample` as {type(error).__name__}"
        raise AssertionError(f"{message}: ask policies by `ask`, in an `attempt`") from error
    failed = any(failure.reason == "policy-error" for failure in left.failures)
    must(failed, "a request failed, and no failure of the sample tells it: ask policies by `ask`, in an `attempt`")
    _check_rows(left, broken)
    await check_replayed(left, broken, sampler, worth)


async def _check_cancelling(sampler: Sampler, context: _Watched) -> None:
    before = asyncio.all_tasks()
    sampling = asyncio.create_task(_called(sampler, context))
    stuck = asyncio.create_task(context.is_stuck.wait())
    await asyncio.wait([sampling, stuck], return_when=asyncio.FIRST_COMPLETED, timeout=SECONDS)
    for _ in range(5):
        await asyncio.sleep(0)
    stuck.cancel()
    if not sampling.done():  # as it is where the workflow ends without waiting for an action
        sampling.cancel()
        done, _ = await asyncio.wait([sampling], timeout=SECONDS)
        must(done, "cancelling the sampler does not end it")
        must(sampling.cancelled() or sampling.exception() is not None, "a cancelled sampler returns as if it were done")
    if not sampling.cancelled():
        sampling.result()
    await _nothing_left(before, "when it was cancelled")


async def _nothing_left(before: set[asyncio.Task[Any]], when: str) -> None:
    for _ in range(100):  # what was cancelled may take some rounds to end
        if asyncio.all_tasks() <= before:
            return
        await asyncio.sleep(0)
    left = [task.get_coro() for task in asyncio.all_tasks() - before]
    names = ", ".join(sorted({str(getattr(each, "__qualname__", each)) for each in left}))
    message = f"{len(left)} tasks are left running {when}: {names}"
    raise AssertionError(f"{message}. Start runs by `async with context.start(...)`")


def _check_rows(sample: Sample, context: _Watched) -> None:
    """Keys, seeds, and every sampled token in one place."""
    rows = list({id(turn): turn for each in sample.episodes for turn in (*each.turns, *each.off_path_turns)}.values())
    for (session, index), count in Counter((row.session, row.index) for row in rows).items():
        must(count == 1, f"{count} rows have the key (session {session}, index {index})")
    for request, count in Counter(context.requests).items():
        session, (agent, slot), candidate, _ = request
        message = f"act {agent}:{slot} of session {session} is asked for {count} times as candidate {candidate!r}"
        must(count == 1, f"{message}: these get one seed")
    given = {id(action): action for action in context.given}
    for action, count in Counter(id(row.action) for row in rows).items():
        must(action in given, "a row has an action that no policy gave")
        must(count == 1, f"one action is {count} rows")
    in_rows = {id(row.action) for row in rows}
    other = sum(action.length for key, action in given.items() if key not in in_rows)
    extra = sum(sample.extra_tokens.values())
    if not sample.failures:
        lost = [
            f"act {key[0]}:{key[1]} of session {session} (candidate {candidate!r})"
            for action, (session, key, candidate, _) in context.request_of.items()
            if action not in in_rows
        ]
        which = f": those of {', '.join(lost[:3])}{' and others' if lost[3:] else ''}" if lost else ""
        message = f"{other} sampled tokens are in no row, extra_tokens has {extra} (nothing failed)"
        must(other == extra, message + which)
    must(other >= extra, f"{other} sampled tokens are in no row, and extra_tokens has {extra}")
    for row in rows:
        must(row.uid == context.uid, f"{named(row)} has uid '{row.uid}', the task's is '{context.uid}'")
        policy = context.task_context.agents[row.agent].policy
        must(row.policy == policy, f"{named(row)} has policy '{row.policy}', its agent's is '{policy}'")


def _same(first: Sample, again: Sample, details: bool) -> None:
    """AssertionError, naming what differs.

    Without `details`, failures may say something else: which of concurrent effects they name, arrival decides.
    """
    when = "with actions arriving in another order"
    rows, others = first.turns, again.turns
    for row, other in zip(rows, others, strict=False):
        for field in dataclasses.fields(Turn):
            a, b = getattr(row, field.name), getattr(other, field.name)
            must(a == b, f"{when}, {named(row)} has another {field.name}: {a!r:.80}, then {b!r:.80}")
    must(len(rows) == len(others), f"{when}, there are {len(others)} rows instead of {len(rows)}")
    a, b = _told(first, details), _told(again, details)
    for name in a:
        must(a[name] == b[name], f"{when}, it has other {name}: {a[name]!r:.300}, then {b[name]!r:.300}")


def _told(sample: Sample, details: bool) -> dict[str, Any]:
    return {
        "episodes": [(e.session, e.answer, e.success, e.score, e.finished) for e in sample.episodes],
        "paths": [[(turn.session, turn.index) for turn in e.turns] for e in sample.episodes],
        "turns beside a path": [[(turn.session, turn.index) for turn in e.off_path_turns] for e in sample.episodes],
        "journals": [each.journal for each in sample.episodes],
        "failures": [(each.session, each.reason, details and each.detail) for each in sample.failures],
        "extra_tokens": sample.extra_tokens,
    }
