"""Check the required properties of a sampler without a model; example in docs/plugins.md.

Use a workflow whose observations contain the earlier actions and whose calls are pure functions: the check replays the
workflow from `node` and `parent` of the rows, independently of the sampler.
"""

from __future__ import annotations

import asyncio
import dataclasses
import warnings
from collections import Counter
from functools import partial
from typing import Any

from marl_verl.algo.sampling import Failure, Sample, Sampler
from marl_verl.episode import Episode, ReplayMismatch, Turn, Workflow, WorkflowError
from marl_verl.episode.row import JOIN
from marl_verl.errors import MarlError, MarlWarning
from marl_verl.journals.write import sample_lines
from marl_verl.tasks.base import Task, TaskSet
from marl_verl.testing.determinism import replayable
from marl_verl.testing.given import SECONDS, awaitable, both, instance, lets_out, must, same_elsewhere, time_limit
from marl_verl.testing.replayed import Worth, check_replayed, named
from marl_verl.testing.scripted import ScriptedContext, ScriptedPolicy, check_scene
from marl_verl.testing.watched import Watched

UNBRANCHED = "exercised no branching: no two rows have the same parent. Use more candidates, or other scores"
CANCEL_SECONDS = 10.0  # after which a sampler ignores its cancellation


def check_sampler(
    sampler: Sampler,
    workflow: Workflow,
    task: Task,
    policy: ScriptedPolicy,
    *,
    tasks: TaskSet | None = None,
    seed: int = 0,
    orders: int = 3,
    asked: int | None = None,
    worth: Worth | None = None,
    may_fail: bool = False,
    seconds: float = SECONDS,
    **options: Any,
) -> Sample:
    """Assert the required properties of a sampler; call it from a test (it starts an event loop).

    Preconditions: the workflow is deterministic, replayed from any prefix of its journal (`check_workflow` checks
    more), and the sampler requests actions and returns episodes without failures.

    Rows: keys are unique; every action is in at most one row, and its tokens are in the rows, in `extra_tokens`, or
    those of a failed attempt; no two requests have the same seed; a parent is a node, and its rows come first.

    Replay, independent of the sampler: siblings share one observation, that of the state after their parent's actions,
    so that states advance and later agents see earlier actions; the turns of an episode are a path, and its journal
    has exactly their actions; every row has the rewards of the state that it leads to.

    Repetition: with `orders` other arrival orders the sample is the same, and in processes with other hash seeds, which
    change the order of sets; one failing request becomes a failure, and
    the rest keeps all of the above properties; a cancellation propagates; no task is left running.

    Args:
        policy: its texts should depend on (act, session, candidate): equal candidates hide bugs.
        tasks: as for `ScriptedContext`.
        seed: as for `ScriptedContext`.
        asked: expected number of requested actions, if known.
        worth: for a sampler that branches, (run at the parent, run at the node) -> the answer by which a state before
            the workflow's end is scored, or None. Without it only the rewards of final states are checked.
        may_fail: whether the workflow may fail with some or all actions, for tests with random workflows.
        seconds: time limit of the check.
        options: of `ScriptedContext`: rewards, sides, untrained, mix, limits.

    Warns with MarlWarning if a sampler that branches has sampled no two rows with the same parent, so that nothing of a
    tree was checked.

    Returns:
        The sample.

    Raises:
        AssertionError: the violated property and where.
        ReplayMismatch: the workflow is not deterministic.
        MarlError: an attempt failed without an injected failure; or an argument of the wrong type.
    """
    instance(sampler, Sampler, "MySampler(), of a class MySampler(Sampler)")
    check_scene(workflow, task, policy, tasks)

    def watched(**how: Any) -> Watched:
        return Watched(workflow, task, policy, tasks, seed, **options, **how)

    async def check() -> Sample:
        try:
            await replayable(workflow, task, policy, seed, orders=0)
        except ReplayMismatch:
            raise
        except WorkflowError:
            pass  # raised again when it is sampled
        context = watched()
        sample, requests = await _sampled(sampler, context), context.requests
        if (mismatch := context.mismatch()) is not None:
            raise mismatch
        if not may_fail:
            if sample.failures:
                raise MarlError(f"an attempt failed without an injected failure: {sample.failures[0].detail}")
            must(requests, "the sampler requested no action")
            must(sample.episodes, f"the sampler requested {len(requests)} actions, but its sample has no episode")
        must(asked in (None, len(requests)), f"the sampler requested {len(requests)} actions, not {asked}")
        _check_rows(sample, context)
        await check_replayed(sample, context, sampler, worth)
        for order in range(orders):
            shuffled = watched(order=order)
            again = await _sampled(sampler, shuffled)
            _same(sample, again, details=not (context.concurrent() or shuffled.concurrent()))
            same = sorted(map(repr, shuffled.requests)) == sorted(map(repr, requests))
            must(same, "with actions arriving in another order, the sampler requests other actions")
        if requests:
            await _check_failing(sampler, watched(broken=requests[len(requests) // 2]), worth)
            await _check_cancelling(sampler, watched(stuck=len(requests) // 2))
        return sample

    compute = partial(_lines, sampler, workflow, task, policy, tasks, seed, options)
    with time_limit("check_sampler", seconds):
        sample = asyncio.run(check())
        same_elsewhere(compute, compute(), f"the sample of workflow '{type(workflow).__name__}' on task '{task.id}'")
    if sampler.branches and not may_fail and not _siblings(sample):
        warnings.warn(f"check_sampler of {type(sampler).__name__} {UNBRANCHED}", MarlWarning, stacklevel=2)
    return sample


def _lines(sampler: Sampler, *scene: Any) -> list[str]:
    """A sample as text."""
    *given, options = scene
    context = ScriptedContext(*given, **options)
    sample = asyncio.run(sampler.sample(context))
    return [*sample_lines(sample, context.uid, context.task.id, tokens=True), f"{sorted(sample.extra_tokens.items())}"]


async def _sampled(sampler: Sampler, context: Watched) -> Sample:
    """The sampler's result, asserting that no task is left running."""
    before = asyncio.all_tasks()
    sample = await _called(sampler, context)
    await _nothing_left(before, "when it has returned")
    return sample


async def _called(sampler: Sampler, context: Watched) -> Sample:
    """The sampler's result, asserting that it is a valid `Sample`."""
    found: Sample = await awaitable(sampler.sample(context), "`sample`")
    must(isinstance(found, Sample), f"`sample` must return a Sample, it returned {found!r:.60}")
    for name, kind in (("episodes", Episode), ("failures", Failure)):
        for each in getattr(found, name):
            must(isinstance(each, kind), f"the sample's `{name}` must be {kind.__name__}s, one is {each!r:.60}")
    return found


async def _check_failing(sampler: Sampler, broken: Watched, worth: Worth | None) -> None:
    try:
        left = await _sampled(sampler, broken)
    except Exception as error:
        if not lets_out(error):
            raise
        message = f"a request failed, and `sample` raised {type(error).__name__}"
        raise AssertionError(f"{message}: use `ask` for policy requests, in an `attempt`") from error
    failed = any(failure.reason == "policy-error" for failure in left.failures)
    must(failed, "a request failed, but the sample has no such failure: use `ask` for policy requests, in an `attempt`")
    _check_rows(left, broken)
    await check_replayed(left, broken, sampler, worth)


async def _check_cancelling(sampler: Sampler, context: Watched) -> None:
    before = asyncio.all_tasks()
    sampling = asyncio.create_task(_called(sampler, context))
    stuck = asyncio.create_task(context.is_stuck.wait())
    await asyncio.wait([sampling, stuck], return_when=asyncio.FIRST_COMPLETED)
    for _ in range(5):
        await asyncio.sleep(0)
    stuck.cancel()
    if not sampling.done():  # it is done if the workflow ends without waiting for an action
        sampling.cancel()
        done, _ = await asyncio.wait([sampling], timeout=CANCEL_SECONDS)
        must(done, "the sampler ignores its cancellation")
        must(sampling.cancelled() or sampling.exception() is not None, "a cancelled sampler returned a result")
    if not sampling.cancelled():
        sampling.result()
    await _nothing_left(before, "when it was cancelled")


async def _nothing_left(before: set[asyncio.Task[Any]], when: str) -> None:
    for _ in range(100):  # cancelled tasks may take some iterations to end
        if asyncio.all_tasks() <= before:
            return
        await asyncio.sleep(0)
    left = [task.get_coro() for task in asyncio.all_tasks() - before]
    names = ", ".join(sorted({str(getattr(each, "__qualname__", getattr(each, "__name__", each))) for each in left}))
    message = f"{len(left)} tasks are left running {when}: {names}"
    raise AssertionError(f"{message}. Start runs by `async with context.start(...)`")


def _siblings(sample: Sample) -> bool:
    """Whether two nodes have the same parent."""
    nodes = {(row.parent, node) for row in sample.turns for node in str(row.node).split(JOIN)}
    return len({parent for parent, _ in nodes}) < len(nodes)


def _check_rows(sample: Sample, context: Watched) -> None:
    """Check keys and seeds, and that every sampled token is counted once."""
    turns = {id(turn): turn for each in sample.episodes for turn in (*each.turns, *each.off_path_turns)}.values()
    rows = [turn for turn in turns if not turn.transition]
    for turn in turns:
        why = f"{named(turn)} is a row: its agent is not trained, so that its act is a part of a transition"
        must(turn.node is None or turn.transition or turn.agent in context.explored, why)
    for (session, index), count in Counter((row.session, row.index) for row in rows).items():
        must(count == 1, f"{count} rows have the key (session {session}, index {index})")
    for request, count in Counter(context.requests).items():
        session, (agent, slot), candidate, _ = request
        message = f"act {agent}:{slot} of session {session} is requested {count} times as candidate {candidate!r}"
        must(count == 1, f"{message}: these requests have the same seed")
    given = {id(action): action for action in context.given}
    for action, count in Counter(id(row.action) for row in rows).items():
        must(action in given, "a row has an action that no policy returned")
        must(count == 1, f"one action is in {count} rows")
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
    """Raise AssertionError with the first difference.

    Without `details`, the messages of failures may differ: the named effect can depend on the arrival order.
    """
    when = "with actions arriving in another order"
    rows, others = first.turns, again.turns
    for row, other in zip(rows, others, strict=False):
        for field in dataclasses.fields(Turn):
            a, b = getattr(row, field.name), getattr(other, field.name)
            must(a == b, f"{when}, {named(row)} has another {field.name}: {both(a, b)}")
    must(len(rows) == len(others), f"{when}, there are {len(others)} rows instead of {len(rows)}")
    a, b = _comparable(first, details), _comparable(again, details)
    for name in a:
        must(a[name] == b[name], f"{when}, it has other {name}: {both(a[name], b[name])}")


def _comparable(sample: Sample, details: bool) -> dict[str, Any]:
    return {
        "episodes": [(e.session, e.answer, e.success, e.score, e.finished) for e in sample.episodes],
        "paths": [[(turn.session, turn.index) for turn in e.turns] for e in sample.episodes],
        "turns beside a path": [[(turn.session, turn.index) for turn in e.off_path_turns] for e in sample.episodes],
        "journals": [each.journal for each in sample.episodes],
        "failures": [(each.session, each.reason, details and each.detail) for each in sample.failures],
        "extra_tokens": sample.extra_tokens,
    }
