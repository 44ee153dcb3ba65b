"""Check that a workflow can be replayed: every run with the same actions is the same run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from marl_verl.algo.sampling import drive
from marl_verl.episode import Action, ActRecord, CallRecord, Journal, ReplayMismatch, Run, Workflow, replay
from marl_verl.episode.codec import decode_journal, encode_journal, plain
from marl_verl.episode.journal import Record
from marl_verl.episode.turn import changed
from marl_verl.errors import unknown
from marl_verl.tasks.base import Task
from marl_verl.testing.given import SECONDS, both, must, time_limit
from marl_verl.testing.hash_seeds import elsewhere
from marl_verl.testing.scripted import ScriptedContext, ScriptedPolicy, check_scene, shuffled
from marl_verl.testing.unrecorded import no_mcp_calls


def check_workflow(
    workflow: Workflow,
    task: Task,
    policy: ScriptedPolicy,
    seed: int = 0,
    orders: int = 4,
    may_not_act: Sequence[str] = (),
    seconds: float = SECONDS,
) -> Run:
    """Assert that a workflow can be replayed and that every agent acts; call it from a test (it starts an event loop).

    It runs the workflow with the scripted policy, and again: from the whole journal, strictly and without requests;
    from the journal after a JSON round trip; from every prefix of the journal; with `orders` other arrival orders of
    concurrent actions; and in processes with other hash seeds, which change the order of sets. Each run must have the
    same journal (so calls must be deterministic, too), proposals, invalid marks and answer.

    Args:
        may_not_act: agents of the policy that need not act on this task with these replies.
        seconds: time limit of the check.

    Returns:
        The first run, finished.

    Raises:
        AssertionError: agents of the policy never acted, or the answer (or a proposal) is an action, not its text, or
            the check exceeds `seconds`: in which of these runs, and where.
        ReplayMismatch: an effect differs between runs.
        WorkflowError: the workflow failed.
        MarlError: workflow, task or policy is of the wrong type, or `may_not_act` names an agent without a script.
    """
    check_scene(workflow, task, policy)
    for agent in may_not_act:
        if agent not in policy.agents:
            raise unknown("scripted agent", agent, policy.agents)
    name = f"workflow '{type(workflow).__name__}' on task '{task.id}'"
    with time_limit(f"check_workflow of {name}", seconds):
        first, acted = asyncio.run(replayable(workflow, task, policy, seed, orders))
        for setting, stored in elsewhere(partial(_stored, workflow, task, policy, seed), name):
            mine, theirs = (_Stored(decode_journal(each.pop("journal")), **each) for each in (_encoded(first), stored))
            _same(mine, theirs, f"{name}, with {setting}, which orders sets")
    never = [agent for agent in policy.agents if agent not in acted and agent not in may_not_act]
    advice = f"change the replies or the task, or pass may_not_act={never}"
    must(not never, f"{name} never lets {', '.join(never)} act: {advice}")
    answers, proposes = _has_action(first.answer), _has_action(first.proposals)
    must(not answers, f"{name} answers with an Action, which cannot be scored: return action.text")
    must(not proposes, f"{name} proposes an Action, which cannot be scored: team.propose(action.text)")
    return first


@dataclass
class _Stored:
    """A run as JSON values."""

    journal: Journal
    proposals: Any
    invalid: Any
    answer: Any


def _stored(workflow: Workflow, task: Task, policy: ScriptedPolicy, seed: int) -> dict[str, Any]:
    return _encoded(asyncio.run(_scripted(ScriptedContext(workflow, task, policy), seed)))


async def _scripted(context: ScriptedContext, seed: int, journal: Journal | None = None, strict: bool = False) -> Run:
    workflow = context.task_context.workflow
    given: Any = {"strict": strict, "too_long": context.too_long}
    async with Run(workflow, context.task, context.agents, journal, seed, **given) as run:
        await drive(run, lambda act: context.act(act, 0))
    return run


def _encoded(run: Run) -> dict[str, Any]:
    invalid = sorted([*key, why] for key, why in run.invalid.items())
    answers = {"proposals": plain(run.proposals), "answer": plain(run.answer)}
    return {"journal": encode_journal(run.journal), "invalid": invalid, **answers}


async def replayable(
    workflow: Workflow, task: Task, policy: ScriptedPolicy, seed: int, orders: int
) -> tuple[Run, set[str]]:
    """Check that a workflow is replayable; return (its first run, the agents that acted in any run)."""
    acted: set[str] = set()

    async def run(what: str, journal: Journal | None = None, strict: bool = False, shuffle: int | None = None) -> Run:
        context = ScriptedContext(workflow, task, policy, delay=shuffled(shuffle))
        again = await _scripted(context, seed, journal, strict)
        acted.update(act.agent for _, act, _ in context.asked)
        if what:
            _same(first, again, f"{name}, {what}")
        return again

    name = f"workflow '{type(workflow).__name__}' on task '{task.id}'"

    first = await run("")
    whole = first.journal
    with no_mcp_calls(f"{name}, replayed"):
        again = await replay(workflow, task, policy.agents, whole)
    _same(first, again, f"{name}, replayed")
    await run("restarted from its journal", whole, strict=True)
    stored = decode_journal(json.loads(json.dumps(encode_journal(whole))))
    await run("restarted from its journal as JSON", stored, strict=True)
    for count in range(len(whole)):
        await run(f"restarted from {count} records", whole.prefix(count))
    for shuffle in range(orders):
        await run("with actions arriving in another order", shuffle=shuffle)
    return first, acted


def _has_action(answer: Any) -> bool:
    """Whether an answer is an Action, or a list or dict that contains one."""
    if isinstance(answer, Mapping):
        return _has_action(list(answer.values()))
    return isinstance(answer, Action) or (isinstance(answer, list | tuple) and any(map(_has_action, answer)))


def _same(first: Run | _Stored, again: Run | _Stored, name: str) -> None:
    """Raise ReplayMismatch with the first effect that differs, and both values."""
    different = [(old, new) for old, new in zip(first.journal, again.journal, strict=False) if old != new]
    if different:
        raise ReplayMismatch(f"{name}: {_difference(*different[0])}")
    old, new = tuple(first.journal), tuple(again.journal)
    if len(new) < len(old):
        raise ReplayMismatch(f"{name}: it does not reach {_effect(old[len(new)])}, which the first run reached")
    if len(new) > len(old):
        raise ReplayMismatch(f"{name}: it reaches {_effect(new[len(old)])}, which the first run did not reach")
    ends = {"proposals": "proposals", "invalid": "invalid marks", "answer": "answer"}
    for attribute, shown_as in ends.items():
        one, two = getattr(first, attribute), getattr(again, attribute)
        if one != two:
            raise ReplayMismatch(f"{name}: different {shown_as}: {both(one, two)}")


def _effect(record: Record) -> str:
    return str(record.act) if isinstance(record, ActRecord) else str(record)


def _difference(old: Record, new: Record) -> str:
    if isinstance(old, ActRecord) and isinstance(new, ActRecord) and old.act.key == new.act.key:
        if old.act.seen != new.act.seen:
            return f"{old.act} is shown another observation: {changed(old.act, new.act)}"
        return f"{old.act} has another index or action: {both(str(old), str(new))}"
    if isinstance(old, CallRecord) and isinstance(new, CallRecord) and str(old) == str(new):
        results = both(_result(old), _result(new))
        return f"{old} has another result: {results}. Make it deterministic, or a test double of the tool"
    return f"different effect: {both(str(old), str(new))}"


def _result(call: CallRecord) -> str:
    return str(call.value) if call.raised is None else f"{call.raised.kind}: {call.raised.message}"
