"""Check the required properties of a sampler without a model; example in docs/plugins.md.

Use a workflow whose observations contain the earlier actions and whose calls are pure functions: the check replays the
workflow from `node` and `parent` of the rows, independently of the sampler.
"""

import asyncio
import warnings
from collections import Counter
from dataclasses import replace
from typing import Any

from marl_verl.algo.sampling import Sample, Sampler
from marl_verl.algo.sampling.sampler import sample_lines
from marl_verl.episode import ReplayMismatch, Workflow, WorkflowError
from marl_verl.episode.turn import JOIN
from marl_verl.errors import MarlError, MarlWarning, check_returned
from marl_verl.tasks import Task, TaskSet
from marl_verl_testing.determinism import replayable
from marl_verl_testing.given import SECONDS, must, nothing_left, same, same_elsewhere, time_limit
from marl_verl_testing.replayed import check_replayed, named
from marl_verl_testing.scripted import ScriptedContext, ScriptedPolicy

UNBRANCHED = "exercised no branching: no two rows have the same parent. Use more candidates, or other scores"


def check_sampler(
    sampler: Sampler,
    workflow: Workflow,
    task: Task,
    policy: ScriptedPolicy,
    *,
    tasks: TaskSet | None = None,
    orders: int = 3,
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
    has exactly their actions; every row that leads to the end of its workflow has the rewards of this end.

    Repetition: with `orders` other arrival orders, and in a process with another hash seed, the sample is the same; one
    failing request becomes a failure, and the rest keeps all of the above properties; no task is left running.

    Args:
        policy: its texts should depend on (act, session, candidate): equal candidates hide bugs.
        may_fail: whether the workflow may fail with some or all actions, for tests with random workflows.
        options: of `ScriptedContext`: rewards, sides, untrained, mix, limits.

    Warns with MarlWarning if a sampler that branches has sampled no two rows with the same parent, so that nothing of a
    tree was checked.
    """

    def context_with(**disturbance: Any) -> ScriptedContext:
        return ScriptedContext(workflow, task, policy, tasks, **options, **disturbance)

    def computed() -> list[str]:
        context = context_with()
        return _lines(asyncio.run(sampler.sample(context)), context)

    async def check() -> tuple[Sample, list[str]]:
        try:
            await replayable(workflow, task, policy, seed=0, orders=0)
        except ReplayMismatch:
            raise
        except WorkflowError:
            pass  # raised again when it is sampled
        context = context_with()
        sample, requests = await _sampled(sampler, context), context.requests
        lines = _lines(sample, context)
        if not may_fail:
            if sample.failures:
                raise MarlError(f"an attempt failed without an injected failure: {sample.failures[0].detail}")
            must(requests, "the sampler requested no action")
            must(sample.episodes, f"the sampler requested {len(requests)} actions, but its sample has no episode")
        _check_rows(sample, context)
        await check_replayed(sample, context, sampler)
        when = "with actions arriving in another order, the"
        for order in range(orders):
            shuffled = context_with(order=order)
            again = await _sampled(sampler, shuffled)
            same(lines, _lines(again, context), f"{when} sample")
            must(Counter(shuffled.requests) == Counter(requests), f"{when} sampler requests other actions")
        if requests:
            failing = context_with(failing=requests[len(requests) // 2].__eq__)
            rest = await _sampled(sampler, failing)
            failed = any(failure.reason == "policy-error" for failure in rest.failures)
            must(failed, "a request failed, but the sample has no such failure: use `ask`, in an `attempt`")
            _check_rows(rest, failing)
            await check_replayed(rest, failing, sampler)
        return sample, lines

    with time_limit("check_sampler", seconds):
        sample, lines = asyncio.run(check())
        same_elsewhere(computed, lines, f"the sample of workflow '{type(workflow).__name__}' on task '{task.id}'")
    nodes = {(row.parent, node) for row in sample.turns for node in str(row.node).split(JOIN)}
    if sampler.branches and not may_fail and len({parent for parent, _ in nodes}) == len(nodes):
        warnings.warn(f"check_sampler of {type(sampler).__name__} {UNBRANCHED}", MarlWarning, stacklevel=2)
    return sample


def _lines(sample: Sample, context: ScriptedContext) -> list[str]:
    """A sample as text, without the messages of failures: concurrent effects may fail in another order."""
    failures = [replace(failure, detail="") for failure in sample.failures]
    lines = sample_lines(replace(sample, failures=failures), context.uid, context.task.id, tokens=True)
    rows = [f"{named(turn)}: parent {turn.parent}, rewards {sorted(turn.components.items())}" for turn in sample.turns]
    return [*rows, *lines, f"extra tokens {sorted(sample.extra_tokens.items())}"]


async def _sampled(sampler: Sampler, context: ScriptedContext) -> Sample:
    """The sampler's result, asserting its type and that no task is left running."""
    before = asyncio.all_tasks()
    sample = await sampler.sample(context)
    check_returned(sample, Sample, f"`{type(sampler).__name__}.sample` must return a Sample")
    await nothing_left(before, "when the sampler has returned")
    return sample


def _check_rows(sample: Sample, context: ScriptedContext) -> None:
    """Check keys and seeds, and that every sampled token is counted once."""
    rows = sample.turns
    for row in rows:
        why = f"{named(row)} is a row: its agent is not trained, so that its act is a part of a transition"
        must(row.node is None or row.role in context.explored, why)
    for (session, index), count in Counter((row.session, row.index) for row in rows).items():
        must(count == 1, f"{count} rows have the key (session {session}, index {index})")
    for (session, (agent, slot), candidate, _), count in Counter(context.requests).items():
        message = f"act {agent}:{slot} of session {session} is requested {count} times as candidate {candidate!r}"
        must(count == 1, f"{message}: these requests have the same seed")
    sampled = {id(action): action for action in context.given}
    for action, count in Counter(id(row.action) for row in rows).items():
        must(action in sampled, "a row has an action that no policy returned")
        must(count == 1, f"one action is in {count} rows")
    in_rows = {id(row.action) for row in rows}
    other = sum(action.length for key, action in sampled.items() if key not in in_rows)
    extra = sum(sample.extra_tokens.values())
    right = other >= extra if sample.failures else other == extra  # those of failed attempts are not counted
    must(right, f"{other} sampled tokens are in no row, and extra_tokens has {extra}")
