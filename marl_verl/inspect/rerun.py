"""Running a stored episode again: no model is asked, nothing is called, and its answer is scored anew.

Every act gets its recorded action. Without masks, another observation than the recorded one is a mismatch: the workflow
has changed, or is not deterministic. Masked acts get a placeholder, and every other act keeps its recorded text:

    Delta = R(tau) - R(tau with the acts masked, all other texts frozen)

which needs no model. The acts whose observation changed are those that a model would be asked for again.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from marl_verl.episode import Act, Action, CallRecord, Episode, Journal, ReplayMismatch, Run, Workflow, WorkflowError
from marl_verl.episode.codec import plain
from marl_verl.episode.errors import short
from marl_verl.episode.turn import changed
from marl_verl.errors import MarlError, told
from marl_verl.sampling.rollouts import judged
from marl_verl.tasks.base import TaskSet

PLACEHOLDER = "(no answer)"
"""What a masked act says: the default of the credits that mask."""

Key = tuple[str, str]
"""(agent that the workflow called, slot)."""


class _Sealed(Run):
    """A run that makes no call, and remembers the first one that it would have had to make."""

    __slots__ = ("unmade",)
    unmade: CallRecord | None

    def _check_call(self, asked: CallRecord) -> None:
        if self.unmade is None:
            self.unmade = asked
        super()._check_call(asked)


@dataclass
class Rerun:
    """What came of running an episode again.

    Attributes:
        journal: what happened now: masked acts have the placeholder, and every act what it was shown.
        masked: those that got the placeholder.
        changed: those that were shown something else than the record says.
        waiting: acts without a recorded action, at which it stands.
        missed: recorded acts that were not reached.
        finished: whether the workflow has ended.
        answer: what it answered, as a JSON value; of an unfinished one its latest proposal, None without.
        invalid: acts whose action was of no use, and why.
        score, success: of the answer; None where it did not come as far as the record, or was scored by playing on.
        ended: why it went no further, where it failed.
    """

    journal: Journal = Journal()
    masked: frozenset[Key] = frozenset()
    changed: set[Key] = field(default_factory=set)
    waiting: tuple[Act, ...] = ()
    missed: list[Key] = field(default_factory=list)
    finished: bool = False
    answer: Any = None
    invalid: dict[Key, str] = field(default_factory=dict)
    score: float | None = None
    success: bool | None = None
    ended: str | None = None

    def acts(self) -> list[Act]:
        return [record.act for record in self.journal.acts()]

    def difference(self, again: Rerun | None) -> float | None:
        """How much more the episode scored without the masks; None where one of the two is not known."""
        if again is None or again.score is None or self.score is None:
            return None
        return again.score - self.score


async def rerun(
    workflow: Workflow, tasks: TaskSet, agents: Collection[str], episode: Episode, masked: Collection[Key] = ()
) -> Rerun:
    """Run an episode again.

    Args:
        masked: acts whose action is replaced by the placeholder.

    Raises:
        ReplayMismatch: nothing is masked, and the workflow does not do what the journal says.
        WorkflowError: nothing is masked, and the workflow fails.
        MarlError: the answer cannot be scored.
    """
    again = Rerun(masked=frozenset(masked))
    calls = Journal(tuple(episode.journal.calls()), episode.journal.seed)
    run = _Sealed(workflow, episode.task, list(agents), calls, sealed=True)
    run.unmade = None
    async with run:
        try:
            again.waiting = await _play(run, episode.journal, again)
        except WorkflowError as error:
            if not masked:
                raise
            unmade = run.unmade if isinstance(error, ReplayMismatch) else None
            again.ended = str(error) if unmade is None else f"{_asked(unmade)}, which was never made"
        again.journal, again.finished, again.invalid = run.journal, run.finished, dict(run.invalid)
        recorded = [record.act.key for record in episode.journal.acts()]
        again.missed = [key for key in recorded if again.journal.act(*key) is None]
        if not masked:
            _check(run, episode, again)
        answer = run.answer if run.finished else (run.proposals or [None])[-1]
    again.answer = plain(answer)
    if _comparable(episode, again):
        again.score, again.success = (0.0, False) if answer is None else await _scored(tasks, episode, answer)
    return again


async def _play(run: Run, journal: Journal, again: Rerun) -> tuple[Act, ...]:
    """Give every act its action as soon as it is reached, as `episode.replay` does; returns the acts without one."""
    standing = False
    while (acts := await (run.stand() if standing else run.next())) is not None:
        known = [act for act in acts if act.key in again.masked or journal.act(*act.key) is not None]
        if standing and not known:
            return acts
        standing = standing or len(known) < len(acts)
        for act in known:
            run.supply(act, _action(run, journal, act, again))
    return ()


def _action(run: Run, journal: Journal, act: Act, again: Rerun) -> Action:
    record = journal.act(*act.key)
    assert record is not None  # only recorded acts can be masked
    if record.act.observation != act.observation:
        if not again.masked:
            raise _mismatch(run, f"{act} is shown another observation: {changed(record.act, act)}")
        again.changed.add(act.key)
    return Action(PLACEHOLDER) if act.key in again.masked else record.action


def _check(run: Run, episode: Episode, again: Rerun) -> None:
    """Whether it came to the same place as the record."""
    if again.waiting and (episode.finished or again.missed):
        raise _mismatch(run, f"it goes on to {again.waiting[0]}, which the journal does not have")
    if again.missed:
        agent, slot = again.missed[0]
        raise _mismatch(run, f"it ends without act {agent}:{slot}, which the journal has")
    if again.finished and not episode.finished:
        raise _mismatch(run, "it ends here, and went on when it was stored")


def _mismatch(run: Run, what: str) -> ReplayMismatch:
    return ReplayMismatch(f"workflow '{type(run.workflow).__name__}' on task '{run.task.id}': {what}")


def _comparable(episode: Episode, again: Rerun) -> bool:
    """Whether it came as far as the record, to the answer that was scored (not by playing on to an end)."""
    if again.ended is not None or again.finished:
        return again.ended is None
    as_far = not episode.finished and not again.missed
    return as_far and (bool(again.masked) or same(again.answer, episode.answer))


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are the same (NaN is NaN)."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


async def _scored(tasks: TaskSet, episode: Episode, answer: Any) -> tuple[float, bool]:
    """(score, success) of an answer, as training has them."""
    try:
        return await judged(tasks, episode.task, answer)
    except Exception as error:  # a task set's own mistake: told with its name, and kept as the cause
        name, task = type(tasks).__name__, episode.task.id
        raise MarlError(f"task set {name} cannot score the answer on task '{task}': {told(error)}") from error


def _asked(call: CallRecord) -> str:
    """A call in words, e.g. `judge calls look_up("4")`."""
    who = "the workflow" if call.agent is None else call.agent
    name = call.function.partition(":")[2]
    return f"{who} calls {short(f'{name}({call.arguments[1:-1]})')}"


def differences(episode: Episode, again: Rerun) -> list[str]:
    """How a plain replay differs from what is stored, though every act was shown what the journal says."""
    found = []
    if again.finished and not same(again.answer, episode.answer):
        found.append(f"the answer is {again.answer!r}, stored is {episode.answer!r}")
    if again.score is not None and not same(again.score, episode.score):
        found.append(f"the score is {again.score:g}, stored is {episode.score:g}")
    elif again.success is not None and again.success != episode.success:
        found.append(f"success is {again.success}, stored is {episode.success}")
    for turn in (turn for turn in episode.turns if turn.node is None):  # in a tree a later act may bring the mark
        if (now := again.invalid.get(turn.key)) != turn.invalid:
            found.append(f"the mark on act {':'.join(turn.key)} is {now!r}, stored is {turn.invalid!r}")
    return found
