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
from marl_verl.errors import MarlError, format_error
from marl_verl.inspect.episodes import EpisodeFile, Supplied
from marl_verl.options import build
from marl_verl.tasks.base import TaskSet
from marl_verl.version import __version__

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


def replay(file: EpisodeFile, episode: Episode) -> Rerun:
    """Replay an episode. MarlError for a part that is not registered, and an episode that cannot be replayed."""
    workflow, tasks = _built("workflows", file.header.workflow, file), _built("tasks", file.header.task, file)
    try:
        return asyncio.run(rerun(workflow, tasks, file.header.agents, episode))
    except MarlError as error:
        message = f"episode '{episode.id}' cannot be replayed: {error}"
        raise MarlError(f"{message}{_versions(file)}; --stored shows it without running it") from error


def changes(file: EpisodeFile, episode: Episode, again: Rerun) -> str | None:
    """How a replay differs from the stored episode, or None."""
    changed = differences(episode, again)
    more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
    return f"episode '{episode.id}' is not what is stored: {changed[0]}{more}{_versions(file)}" if changed else None


def _built(kind: str, stored: Supplied, file: EpisodeFile) -> Any:
    """A part that the file names, with its options. MarlError if it is not registered, or has changed."""
    try:
        return build(plugins.load().get(kind, stored.name), stored.options, f"{kind} '{stored.name}'")
    except MarlError as error:
        origin = f"the file's came from {stored.distribution} {stored.version}"
        raise MarlError(f"{file.source}: {error}; {origin}; --stored shows episodes without it") from error


def _versions(file: EpisodeFile) -> str:
    """Versions that differ from those in the file, in parentheses, or ""."""
    known, header = plugins.load(), file.header
    versions = {"marl-verl": (header.marl_verl, __version__)}
    for kind, part in (("workflows", header.workflow), ("tasks", header.task)):
        entry = known.entry(kind, part.name)
        now = entry.source.version if entry.source.distribution == part.distribution else "not there"
        versions[part.distribution] = part.version, now
    changed = [f"{name} was {then} and is {now} here" for name, (then, now) in versions.items() if then != now]
    return f" ({', '.join(changed)})" if changed else ""


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
        if waiting and (episode.finished or missed):
            raise _mismatch(run, f"it continues to {waiting[0]}, which is not in the journal")
        if missed:
            raise _mismatch(run, f"it ends without {missed[0]}, which is in the journal")
        if run.finished and not episode.finished:
            raise _mismatch(run, "it ends, and the stored episode was unfinished")
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


def _mismatch(run: Run, message: str) -> ReplayMismatch:
    return ReplayMismatch(f"workflow '{type(run.workflow).__name__}' on task '{run.task.id}': {message}")


def _same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal (NaN equals NaN)."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def differences(episode: Episode, again: Rerun) -> list[str]:
    """How a replay with the same observations differs from the stored episode."""
    changed = []
    if again.finished and not _same(again.answer, episode.answer):
        changed.append(f"the answer is {again.answer!r}, stored is {episode.answer!r}")
    if again.score is not None and not _same(again.score, episode.score):
        changed.append(f"the score is {again.score:g}, stored is {episode.score:g}")
    elif again.score is not None and again.outcomes != episode.outcomes:
        changed.append(f"the scores of the sides are {again.outcomes}, stored are {episode.outcomes}")
    elif again.success is not None and again.success != episode.success:
        changed.append(f"success is {again.success}, stored is {episode.success}")
    for turn in (turn for turn in episode.turns if turn.node is None):  # in a tree a later act may set the mark
        if (now := again.invalid.get(turn.key)) != turn.invalid:
            changed.append(f"the mark on act {':'.join(turn.key)} is {now!r}, stored is {turn.invalid!r}")
    return changed
