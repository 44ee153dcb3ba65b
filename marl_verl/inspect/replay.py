"""Replay a stored episode: without model requests or calls, each act gets its recorded action; the answer is scored."""

import asyncio
import json
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from marl_verl import plugins
from marl_verl.algo.sampling.context import by_side, judged
from marl_verl.episode import Act, Episode, Journal, ReplayMismatch, Run, Workflow
from marl_verl.episode.codec import plain
from marl_verl.episode.engine import replayed
from marl_verl.errors import MarlError, format_error, user_error
from marl_verl.inspect.episodes import Header
from marl_verl.options import build
from marl_verl.tasks import TaskSet
from marl_verl.team import Named

Key = tuple[str, str]  # (agent that the workflow called, slot)


@dataclass
class Rerun:
    """The result of a replay; without a score if the stored score is that of a rollout."""

    waiting: tuple[Act, ...] = ()  # pending acts, which have no recorded action
    finished: bool = False
    answer: Any = None  # as a JSON value; if unfinished, the latest proposal or None
    invalid: dict[Key, str] = field(default_factory=dict)
    score: float | None = None
    outcomes: dict[str, float] = field(default_factory=dict)  # side -> its score
    success: bool | None = None


def replay(header: Header, episode: Episode) -> Rerun:
    """Replay an episode. MarlError for a part that is not registered, and an episode that cannot be replayed."""
    with user_error(f"episode '{episode.id}' cannot be replayed (--stored shows it without running it)"):
        workflow, tasks = _built("workflows", header.workflow), _built("tasks", header.task)
        return asyncio.run(rerun(workflow, tasks, header.agents, episode))


def _built(kind: str, part: Named) -> Any:
    return build(plugins.load().get(kind, part.name), part.options, f"{kind} '{part.name}'")


async def rerun(workflow: Workflow, tasks: TaskSet, agents: Collection[str], episode: Episode) -> Rerun:
    """Replay an episode.

    Raises:
        ReplayMismatch, WorkflowError: the workflow departs from the journal or fails.
        MarlError: the answer cannot be scored.
    """
    recorded = episode.journal
    calls = Journal(tuple(recorded.calls()), recorded.seed)
    async with Run(workflow, episode.task, list(agents), calls, sealed=True) as run:
        waiting = await replayed(run, recorded)
        reached = run.journal
        missed = [record.act for record in recorded.acts() if reached.act(*record.act.key) is None]
        problem = ""
        if waiting and (episode.finished or missed):
            problem = f"it continues to {waiting[0]}, which is not in the journal"
        elif missed:
            problem = f"it ends without {missed[0]}, which is in the journal"
        elif run.finished and not episode.finished:
            problem = "it ends, and the stored episode was unfinished"
        if problem:
            label = f"workflow '{type(workflow).__name__}' on task '{episode.task.id}'"
            raise ReplayMismatch(f"{label}: {problem}")
        answer = run.answer if run.finished else (run.proposals or [None])[-1]
        again = Rerun(waiting, run.finished, plain(answer), dict(run.invalid))
    if again.finished or _same(again.answer, episode.answer):  # the answer that was scored
        try:
            score, again.success = await judged(tasks, episode.task, answer) if answer is not None else (0.0, False)
            again.score, again.outcomes = by_side(score)
        except Exception as error:  # raised by the task set
            failed = f"task set {type(tasks).__name__} cannot score the answer on task '{episode.task.id}'"
            raise MarlError(f"{failed}: {format_error(error)}") from error
    return again


def _same(value: Any, other: Any) -> bool:
    """Whether two JSON values are equal (NaN equals NaN)."""
    return json.dumps(value, sort_keys=True) == json.dumps(other, sort_keys=True)


def differences(episode: Episode, again: Rerun) -> list[str]:
    """How a replay with the same observations differs from the stored episode."""
    pairs = [("the answer", again.answer, episode.answer)] if again.finished else []
    if again.score is not None:
        pairs.append(("the score", again.score, episode.score))
        pairs.append(("the score of each side", again.outcomes, episode.outcomes))
        pairs.append(("success", again.success, episode.success))
    turns = [turn for turn in episode.turns if turn.node is None]  # in a tree a later act may set the mark
    pairs += [(f"the mark on act {':'.join(turn.key)}", again.invalid.get(turn.key), turn.invalid) for turn in turns]
    return [f"{label} is {now!r}, stored is {then!r}" for label, now, then in pairs if not _same(now, then)]
