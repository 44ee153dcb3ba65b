"""The replay engine: runs a workflow against its journal and waits where the journal ends.

    run = Run(workflow, task, agents, journal)
    while (acts := await run.next()) is not None:
        for act in acts:
            run.resolve(act, await sample(act))
    run.answer, run.turns, run.journal

The order of the journal must not depend on the arrival order of concurrent actions. If effects came from more than
one asyncio task, the run is therefore replayed when it has finished or is blocked (`run_until_blocked`): the replay
resolves every act as soon as it is reached, and its order of effects becomes the order of the journal.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from marl_verl.episode import lanes
from marl_verl.episode.effects import Effects
from marl_verl.episode.errors import Limits, ReplayMismatch, WorkflowError
from marl_verl.episode.journal import ActRecord, CallError, Journal, Record
from marl_verl.episode.turn import Act, Action, changed
from marl_verl.episode.workflow import Team, Workflow
from marl_verl.errors import with_line
from marl_verl.tasks import Task

logger = logging.getLogger(__name__)

QUIET = 32  # loop iterations without an event after which a run counts as blocked: ten levels of nested `gather`
CLOSE_SECONDS = 5.0  # how long `aclose` waits for tasks that ignore their cancellation


class Run(Effects):
    """One run of a workflow on a task, driven by a sampler or a replay.

    Args:
        agents: names of the agents that may act.
        journal: recorded effects. A recorded act with the same observation gets its recorded action; with another
            observation the run waits for a new action. The journal's seed is the seed of the run.
        seed: of `team.random`, for a run without a journal.
        sealed: raise ReplayMismatch for a call that the journal lacks (acts may still wait).
        limits: acts, tokens, calls and seconds; the WorkflowError names the limit that was reached.
        too_long: why a request of a client is too long for the policy of its agent; None: no request is.
    """

    async def next(self) -> tuple[Act, ...] | None:
        """Wait for the next move that needs actions; return its acts (several in a joint move) in the order reached, or
        None once the workflow has finished. Acts that a finished workflow did not wait for are dropped. WorkflowError:
        the workflow raised, or violated a rule of the API; ReplayMismatch: a `sealed` run departed from its journal."""
        if self._closed:
            raise RuntimeError("next() on a run that is closed")
        root = self._begin()
        while not self.finished:
            if self._fatal is not None:
                await self.aclose()
                raise self._fatal
            if root.done():
                await self._finish(root)
                break
            while self._moves:
                acts = tuple(wait.act for wait in self._moves.pop(0) if not wait.future.done())
                if acts:
                    return acts
            await self._woken()
        return None

    async def run_until_blocked(self) -> tuple[Act, ...] | None:
        """Wait until the run cannot continue without an action; return every pending act, in the order in which a
        replay reaches them, or None once the workflow has finished. Raises as `next`."""
        quiet = 0
        while True:
            if (not self._waiting or self._over or self._begin().done()) and await self.next() is None:
                return None
            news = self._news
            if self._stood == news:
                break
            if quiet < QUIET:
                await (self._woken() if self._calling else asyncio.sleep(0))  # the end of a call wakes the run
                quiet = quiet + 1 if self._news == news else 0
            elif await self._in_order():
                self._stood = news
        self._moves.clear()  # `waiting` contains them
        return self.waiting

    def resolve(self, act: Act, action: Action) -> None:
        """Set the action of a pending act (of another: ValueError). No effect on a cancelled act, or after the run."""
        wait = self._waiting.get(act.key)
        if wait is None or (act.key in self._given_up and wait.act.seen != act.seen):
            if self._closed or self.finished or act.key in self._given_up:
                return
            raise ValueError(f"the run is not waiting for {act}")
        del self._waiting[act.key]
        if not wait.future.done():
            self._news += 1
            self._arrived = True
            self._answered(wait.position, wait.act, action)
            wait.future.set_result(action)

    @property
    def waiting(self) -> tuple[Act, ...]:
        """Every pending act, whether or not `next` has returned it."""
        return tuple(wait.act for wait in self._waiting.values())

    @property
    def answer(self) -> Any:
        """The return value of the workflow. RuntimeError if the run has not finished."""
        if not self.finished:
            raise RuntimeError("the run has no answer: its workflow has not finished")
        return self._answer

    @property
    def journal(self) -> Journal:
        """Every completed effect so far, as an immutable copy; available at any time, also after `close`."""
        return Journal(tuple(record for record in self._records if record is not None), self._given.seed)

    def close(self) -> None:
        """Cancel the run's tasks, which end in the next iterations of the event loop."""
        if not self._closed:
            self._closed = True
            self._cancel()
            self._wake()

    async def aclose(self) -> None:
        """Cancel the run's tasks and wait for them; log an error after `CLOSE_SECONDS` if one ignores this."""
        self.close()
        await self._end_tasks()

    async def __aenter__(self) -> "Run":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _begin(self) -> asyncio.Task[Any]:
        if self._root is None:
            self._root = lanes.start(self._main())
            self._root.add_done_callback(self._ended)
        return self._root

    async def _woken(self) -> None:
        """Wait for the next event: a move, the end of a call, an error, or the end of the workflow."""
        if self._driver is not None:
            raise RuntimeError("the run is awaited elsewhere")
        self._driver = asyncio.get_running_loop().create_future()
        try:
            await self._driver
        finally:
            self._driver = None

    async def _main(self) -> Any:
        return await self.workflow._begin(self.task, Team(self, self.agents))

    async def _finish(self, root: asyncio.Task[Any]) -> None:
        """Handle the end of the workflow: set the answer, or raise its error."""
        error = asyncio.CancelledError() if root.cancelled() else root.exception()
        if error is None and root.result() is None:
            error = self._fail("the workflow returned no answer (None)")
        elif error is None and not self.turns:
            error = self._fail("the workflow ended without an act")
        unanswered = None in self._records
        if error is not None:
            await self.aclose()
            if isinstance(error, WorkflowError):
                raise error
            cause = error.__cause__  # of a call that was made live, or a SystemExit that did not end the loop
            original = cause if (cause and isinstance(error, CallError)) or isinstance(cause, SystemExit) else error
            raise self._fail(with_line(original)) from error
        self._cancel()  # acts that the workflow started and did not await
        await self._end_tasks()
        if self._concurrent and not unanswered and not self._sealed and self.workflow.replayable:
            again = await replay(self.workflow, self.task, self.agents, self.journal, replace(self.limits, tokens=None))
            if lost := {act.key for act, _ in self.turns} - {act.key for act, _ in again.turns}:
                why = "was made inside a recorded call, whose result a replay takes from the record"
                raise self._fail(f"act {':'.join(min(lost))} {why}: act outside of it")
            self._records, self.proposals, self.invalid = again._records, again.proposals, again.invalid
        self._records = _numbered(self._records)
        self._answer, self.finished = root.result(), True

    async def _in_order(self) -> bool:
        """Sort the records and pending acts of a blocked run in the order of a replay; return False if an event arrives
        meanwhile. The order is kept if the workflow cancelled an act: a replay cannot reproduce such a race."""
        if not self._concurrent or not self._arrived or self._given_up or self._sealed:
            return True
        news, journal, limits = self._news, self.journal, replace(self.limits, tokens=None)
        async with Run(self.workflow, self.task, self.agents, journal, sealed=True, limits=limits) as again:
            await again.run_until_blocked()
            if self._news != news:
                return False
            now, then = ({wait.act.key: wait.act.seen for wait in run._waiting.values()} for run in (self, again))
            if now != then:
                waits = f"the run waits for {sorted(now)}, and its replay for {sorted(then)}"
                raise self._fail(f"{waits}, or with other observations", ReplayMismatch)
            for key, wait in again._waiting.items():
                self._waiting[key].act, self._waiting[key].position = wait.act, wait.position
            self._waiting = {key: self._waiting[key] for key in again._waiting}
            self._records, self.proposals, self._arrived = [*again._records], again.proposals, False
        return True

    def _cancel(self) -> None:
        self._moves.clear()
        self._waiting.clear()
        for task in self._open():
            task.cancel()

    async def _end_tasks(self) -> None:
        """Wait for cancelled tasks."""
        if left := self._open():
            _, left_behind = await asyncio.wait(left, timeout=CLOSE_SECONDS)
            if self._concurrent:  # tasks without effects, between the known ones, end one nesting level per iteration
                for _ in range(QUIET):
                    await asyncio.sleep(0)
            if left_behind:
                name = type(self.workflow).__name__
                logger.error("workflow '%s' on task '%s' ignores its cancellation", name, self.task.id)

    def _open(self) -> list[asyncio.Task[Any]]:
        return [task for task in (self._root, *self._others) if task is not None and not task.done()]

    def _ended(self, root: asyncio.Task[Any]) -> None:
        if not root.cancelled():
            root.exception()  # retrieved, so that asyncio does not log the error of a closed run
        self._wake()


async def replay(
    workflow: Workflow, task: Task, agents: Sequence[str], journal: Journal, limits: Limits | None = None
) -> Run:
    """Replay a finished journal, resolving every act as soon as it is reached, and return the finished run.
    WorkflowError if the workflow raises; ReplayMismatch for an effect that is not in the journal."""
    calls = Journal(tuple(journal.calls()), journal.seed)
    async with Run(workflow, task, agents, calls, sealed=True, limits=limits or Limits()) as run:
        if acts := await replayed(run, journal):
            raise run._fail(f"the replay reached {acts[0]}, which is not in the journal", ReplayMismatch)
    return run


async def replayed(run: Run, journal: Journal) -> tuple[Act, ...]:
    """Resolve every act of a run as soon as it is reached; return the pending acts that the journal lacks, or ().
    ReplayMismatch: an act is shown another observation."""
    standing = False
    while (acts := await (run.run_until_blocked() if standing else run.next())) is not None:
        known = [(act, record) for act in acts if (record := journal.act(*act.key)) is not None]
        if standing and not known:
            return acts
        standing = standing or len(known) < len(acts)
        for act, record in known:
            if record.act.seen != act.seen:
                why = f"{act} is shown another observation on replay: {changed(record.act, act)}"
                raise ReplayMismatch(f"workflow '{type(run.workflow).__name__}' on task '{run.task.id}': {why}")
            run.resolve(act, record.action)
    return ()


def _numbered(records: list[Record | None]) -> list[Record | None]:
    """Records without unresolved acts, renumbered so that act indices have no gaps."""
    kept: list[Record | None] = []
    index = 0
    for record in records:
        if isinstance(record, ActRecord):
            if record.act.index != index:
                record = ActRecord(replace(record.act, index=index), record.action)
            index += 1
        if record is not None:
            kept.append(record)
    return kept
