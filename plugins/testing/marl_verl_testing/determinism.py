"""Check that a workflow can be replayed: every run with the same actions is the same run."""

import asyncio
import json
from collections.abc import Sequence

from marl_verl.algo.sampling import drive
from marl_verl.episode import Journal, ReplayMismatch, Run, Workflow, replay
from marl_verl.episode.codec import decode_journal, encode_journal, plain
from marl_verl.episode.errors import all_awaited
from marl_verl.tasks import Task
from marl_verl_testing.given import SECONDS, must, same, same_elsewhere, time_limit
from marl_verl_testing.scripted import ScriptedContext, ScriptedPolicy


def check_workflow(
    workflow: Workflow,
    task: Task,
    policy: ScriptedPolicy,
    seed: int = 0,
    orders: int = 4,
    may_not_act: Sequence[str] = (),
    seconds: float = SECONDS,
) -> Run:
    """Assert that a workflow can be replayed and that every agent acts (but those of `may_not_act`); call it from a
    test (it starts an event loop). Returns the first run, finished.

    It runs the workflow with the scripted policy, and again: from the whole journal, without requests;
    from the journal after a JSON round trip; from every prefix of the journal; with `orders` other arrival orders of
    concurrent actions; and in a process with another hash seed, which changes the order of sets. Each run must have the
    same journal (so calls must be deterministic, too), proposals, invalid marks and answer.
    """
    name = _name(workflow, task)
    with time_limit(f"check_workflow of {name}", seconds), all_awaited(name):
        first, acted = asyncio.run(replayable(workflow, task, policy, seed, orders))
        context = ScriptedContext(workflow, task, policy, seed=seed)
        same_elsewhere(lambda: _lines(asyncio.run(_run(context))), _lines(first), name, ReplayMismatch)
    never = [agent for agent in policy.agents if agent not in acted and agent not in may_not_act]
    advice = f"change the replies or the task, or pass may_not_act={never}"
    must(not never, f"{name} never lets {', '.join(never)} act: {advice}")
    return first


async def replayable(
    workflow: Workflow, task: Task, policy: ScriptedPolicy, seed: int, orders: int
) -> tuple[Run, set[str]]:
    """Check that a workflow is replayable; return (its first run, the agents that acted in any run)."""
    acted: set[str] = set()
    name = _name(workflow, task)

    async def run(journal: Journal | None = None, order: int | None = None) -> Run:
        context = ScriptedContext(workflow, task, policy, seed=seed, order=order)
        started = await _run(context, journal)
        acted.update(act.role for _, act, _ in context.asked)
        return started

    def check(again: Run, label: str) -> None:
        same(_lines(first), _lines(again), f"{name}, {label},", ReplayMismatch)

    first = await run()
    whole = first.journal
    check(await replay(workflow, task, policy.agents, whole), "replayed")
    stored = decode_journal(json.loads(json.dumps(encode_journal(whole))))
    check(await run(stored), "restarted from its journal as JSON")
    for count in range(len(whole)):
        check(await run(whole.prefix(count)), f"restarted from {count} records")
    for order in range(orders):
        check(await run(order=order), "with actions arriving in another order")
    return first, acted


def _name(workflow: Workflow, task: Task) -> str:
    return f"workflow '{type(workflow).__name__}' on task '{task.id}'"


async def _run(context: ScriptedContext, journal: Journal | None = None) -> Run:
    async with context.start(0, journal) as run:
        await drive(run, lambda act: context.act(act, 0))
    return run


def _lines(run: Run) -> list[str]:
    """A run as text: its effects in order, and how it ended."""
    stored = encode_journal(run.journal)["records"]
    records = [f"{record} {json.dumps(data)}" for record, data in zip(run.journal, stored, strict=True)]
    ends = [f"proposals {plain(run.proposals)}", f"invalid marks {sorted(map(str, run.invalid.items()))}"]
    return [*records, *ends, f"answer {plain(run.answer)}"]
