"""Replay a stored episode: without model requests or calls; its answer is scored again.

Every act gets its recorded action. Masked acts get a placeholder: Delta = R(tau) - R(tau with the acts masked, other
texts frozen); acts whose observation changed would be sampled again by a model.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from marl_verl import plugins
from marl_verl.algo.sampling.context import by_side, judged
from marl_verl.episode import Act, Action, Episode, Journal, ReplayMismatch, Run, Workflow, WorkflowError
from marl_verl.episode.codec import plain
from marl_verl.episode.errors import short
from marl_verl.episode.journal import CallRecord
from marl_verl.episode.turn import changed as how_changed
from marl_verl.errors import MarlError, format_error, unknown
from marl_verl.inspect.episodes import EpisodeFile, Supplied, first_of
from marl_verl.options import build
from marl_verl.tasks.base import TaskSet
from marl_verl.version import __version__

PLACEHOLDER = "(no answer)"  # text of a masked act, the default of the credits that mask
Key = tuple[str, str]  # (agent that the workflow called, slot)


class _Sealed(Run):
    """A run that makes no calls, and remembers the first one that is not in the journal."""

    __slots__ = ("unmade",)
    unmade: CallRecord | None

    def _check_call(self, asked: CallRecord) -> None:
        if self.unmade is None:
            self.unmade = asked
        super()._check_call(asked)

    def mismatch(self, message: str) -> ReplayMismatch:
        return ReplayMismatch(f"workflow '{type(self.workflow).__name__}' on task '{self.task.id}': {message}")


@dataclass
class Rerun:
    """The result of a replay; without a score if it did not finish, or if the stored score is that of a rollout."""

    journal: Journal = Journal()  # of the replay
    masked: frozenset[Key] = frozenset()  # acts that got the placeholder
    placeholder: str = PLACEHOLDER
    changed: set[Key] = field(default_factory=set)  # acts whose observation differs from the recorded one
    waiting: tuple[Act, ...] = ()  # pending acts, which have no recorded action
    missed: list[Key] = field(default_factory=list)  # recorded acts that were not reached
    finished: bool = False
    answer: Any = None  # as a JSON value; if unfinished, the latest proposal or None
    invalid: dict[Key, str] = field(default_factory=dict)
    score: float | None = None
    outcomes: dict[str, float] = field(default_factory=dict)  # side -> its score
    success: bool | None = None
    ended: str | None = None  # why the replay failed

    def named(self, keys: Collection[Key]) -> list[str]:
        """The reached acts among `keys`, as AGENT:SLOT, in order."""
        return [":".join(record.act.key) for record in self.journal.acts() if record.act.key in keys]

    def difference(self, again: Rerun | None) -> float | None:
        """The score of `again` (without masks) minus this score; None if one of the two is unknown."""
        if again is None or again.score is None or self.score is None:
            return None
        return again.score - self.score


def replay(
    file: EpisodeFile, episode: Episode, mask: Sequence[str] = (), placeholder: str = PLACEHOLDER
) -> tuple[Rerun, Rerun | None]:
    """Replay an episode; return (the replay, the replay with `mask` masked, or None without a mask).

    Args:
        mask: acts (AGENT:SLOT), and agents, of which all acts are masked.
        placeholder: text of the masked acts.

    Raises:
        MarlError: no such act or agent (with the nearest), a part that is not registered, an episode that cannot be
            replayed.
    """
    acts: dict[str, list[Key]] = {}
    by = {turn.key: turn.agent for turn in episode.turns}
    for key in (record.act.key for record in episode.journal.acts()):
        acts.setdefault(":".join(key), []).append(key)
        acts.setdefault(by.get(key, key[0]), []).append(key)
    for word in mask:
        if word not in acts:
            raise unknown(f"act of episode '{episode.id}'", word, acts)
    masked = list(dict.fromkeys(key for word in mask for key in acts[word]))
    workflow = _built("workflows", file.header.workflow, file)
    tasks = _built("tasks", file.header.task, file)
    again = partial(rerun, workflow, tasks, file.header.agents, episode)
    try:
        plain_replay = asyncio.run(again())
        return plain_replay, asyncio.run(again(masked, placeholder)) if masked else None
    except MarlError as error:
        message = f"episode '{episode.id}' cannot be replayed: {error}"
        raise MarlError(f"{message}{_versions(file)}; --stored shows it without running it") from error


def changes(file: EpisodeFile, episode: Episode, again: Rerun) -> str | None:
    """How a replay differs from the stored episode, or None."""
    changed = differences(episode, again)
    return f"episode '{episode.id}' is not what is stored: {first_of(changed)}{_versions(file)}" if changed else None


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
        now = entry.version if entry.distribution == part.distribution else "not there"
        versions[part.distribution] = part.version, now
    changed = [f"{name} was {then} and is {now} here" for name, (then, now) in versions.items() if then != now]
    return f" ({', '.join(changed)})" if changed else ""


async def rerun(
    workflow: Workflow,
    tasks: TaskSet,
    agents: Collection[str],
    episode: Episode,
    masked: Collection[Key] = (),
    placeholder: str = PLACEHOLDER,
) -> Rerun:
    """Replay an episode, with the actions of masked acts replaced by the placeholder.

    Raises:
        ReplayMismatch, WorkflowError: nothing is masked, and the workflow departs from the journal or fails.
        MarlError: the answer cannot be scored.
    """
    again, recorded = Rerun(masked=frozenset(masked), placeholder=placeholder), episode.journal
    calls = Journal(tuple(recorded.calls()), recorded.seed)
    run = _Sealed(workflow, episode.task, list(agents), calls, sealed=True)
    run.unmade = None
    async with run:
        try:
            again.waiting = await _play(run, recorded, again)
        except WorkflowError as error:
            if not masked:
                raise
            again.ended = str(error)
            if isinstance(error, ReplayMismatch) and (call := run.unmade) is not None:
                asked = short(f"{call.function.partition(':')[2]}({call.arguments[1:-1]})")
                again.ended = f"{call.agent or 'the workflow'} calls {asked}, which was never made"
        again.journal, again.finished, again.invalid = run.journal, run.finished, dict(run.invalid)
        again.missed = [record.act.key for record in recorded.acts() if again.journal.act(*record.act.key) is None]
        how = None
        if again.waiting and (episode.finished or again.missed):
            how = f"it continues to {again.waiting[0]}, which is not in the journal"
        elif again.missed:
            how = f"it ends without act {':'.join(again.missed[0])}, which is in the journal"
        elif again.finished and not episode.finished:
            how = "it ends, and the stored episode was unfinished"
        if how is not None and not masked:
            raise run.mismatch(how)
        answer = run.answer if run.finished else (run.proposals or [None])[-1]
    again.answer = plain(answer)
    to_record = not episode.finished and not again.missed and (again.masked or _same(again.answer, episode.answer))
    if again.ended is None and (again.finished or to_record):  # the replay reached the answer that was scored
        try:
            score, again.success = await judged(tasks, episode.task, answer) if answer is not None else (0.0, False)
            again.score, again.outcomes = by_side(score)
        except Exception as error:  # raised by the task set
            name, task = type(tasks).__name__, episode.task.id
            raise MarlError(
                f"task set {name} cannot score the answer on task '{task}': {format_error(error)}"
            ) from error
    return again


async def _play(run: _Sealed, journal: Journal, again: Rerun) -> tuple[Act, ...]:
    """Resolve every act as soon as it is reached, as in `episode.replay`; return the pending acts."""
    standing = False
    while (acts := await (run.run_until_blocked() if standing else run.next())) is not None:
        known = [(act, record) for act in acts if (record := journal.act(*act.key)) is not None]
        if standing and not known:
            return acts
        standing = standing or len(known) < len(acts)
        for act, record in known:
            if record.act.seen != act.seen:
                if not again.masked:
                    raise run.mismatch(f"{act} is shown another observation: {how_changed(record.act, act)}")
                again.changed.add(act.key)
            run.resolve(act, Action(again.placeholder) if act.key in again.masked else record.action)
    return ()


def _same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal (NaN equals NaN)."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def differences(episode: Episode, again: Rerun) -> list[str]:
    """How an unmasked replay with the same observations differs from the stored episode."""
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
