"""The replay engine: runs a workflow against its journal, and waits where the journal ends.

    run = Run(workflow, task, agents, journal)
    while (acts := await run.next()) is not None:
        for act in acts:
            run.supply(act, await sample(act))
    run.answer, run.turns, run.journal

The journal's order must not depend on which of several concurrent actions arrives first. Where effects came from
more than one asyncio task, the run is replayed once it has finished or is blocked (`run_until_blocked`): every action
is given as soon as its act is reached, and the order of reaching them is the order of the journal.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from marl_verl.episode.effects import Effects
from marl_verl.episode.errors import Limits, ReplayMismatch, WorkflowError, with_line
from marl_verl.episode.journal import ActRecord, Journal, Record
from marl_verl.episode.turn import Act, Action, changed
from marl_verl.episode.watchdog import watchdog
from marl_verl.episode.workflow import Team, Workflow
from marl_verl.tasks.base import Task

logger = logging.getLogger(__name__)

QUIET = 32  # rounds of the event loop without news after which a run stands: enough for ten levels of nested `gather`
CLOSE_SECONDS = 5.0  # for `aclose` to wait for tasks that do not let themselves be cancelled


class Run(Effects):
    """One run of a workflow on a task, driven from outside.

    Args:
        agents: names of the agents that may act.
        journal: what is already known. An act recorded with the same observation costs nothing; with another one it
            waits again. Its seed is the run's.
        seed: of `team.random`, for a run without a journal.
        strict: another observation than the recorded one, or a recorded call with other arguments, is a ReplayMismatch.
        sealed: only what the journal has may happen: a call that it lacks is a ReplayMismatch (acts may still wait).
        limits: acts, tokens and seconds of a call; a WorkflowError tells which was reached.
    """

    __slots__ = ()

    async def next(self) -> tuple[Act, ...] | None:
        """Wait for the next move that needs actions: its acts (several in a joint move), in the order of reaching them.

        Returns None once the workflow has finished; acts it no longer waits for are then dropped. WorkflowError: the
        workflow raised, or broke a rule; ReplayMismatch: `strict` or `sealed`, and it left the journal.
        """
        if self._closed or self._driver is not None:
            raise RuntimeError(f"next() on a run that is {'closed' if self._closed else 'awaited elsewhere'}")
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
        """Wait until the run can go no further without an action, as far as effects tell.

        Returns every act that it waits for, in the order in which a replay reaches them; None once the workflow has
        finished. Raises as `next`.
        """
        if self._driver is not None:
            raise RuntimeError("stand() while the run is awaited elsewhere")
        quiet = 0
        while True:
            if (not self._waiting or self._over or self._begin().done()) and await self.next() is None:
                return None
            news = self._news
            if self._stood == news:
                break
            if quiet < QUIET:
                await (self._woken() if self._calling else asyncio.sleep(0))  # a call's end is news
                quiet = quiet + 1 if self._news == news else 0
            elif await self._in_order():
                self._stood = news
        self._moves.clear()  # told
        return self.waiting

    def resolve(self, act: Act, action: Action) -> None:
        """Answer an act that the run waits for. Dropped if the workflow has cancelled the act, or the run has ended.
        ValueError: the run does not stand at this act (answered already, or never reached)."""
        wait = self._waiting.pop(act.key, None)
        if wait is None:
            if self._closed or self.finished or act.key in self._given_up:
                return
            raise ValueError(f"the run does not stand at {act}")
        if not wait.future.done():
            self._news += 1
            self._arrived = True
            self._records[wait.position] = ActRecord(wait.act, action)
            self.tokens += action.length
            wait.future.set_result(action)

    @property
    def waiting(self) -> tuple[Act, ...]:
        """Every act that the run has reached and that has no action yet, told by `next` or not."""
        return tuple(wait.act for wait in self._waiting.values())

    @property
    def answer(self) -> Any:
        """What the workflow returned. RuntimeError before it has."""
        if not self.finished:
            raise RuntimeError("the run has not finished: it has no answer")
        return self._answer

    @property
    def journal(self) -> Journal:
        """Every effect so far that has its result, as an immutable copy; at any time, and after `close` too."""
        return Journal(tuple(record for record in self._records if record is not None), self._given.seed)

    @property
    def turns(self) -> list[tuple[Act, Action]]:
        """Acts with their actions, in index order (final when the run has finished)."""
        return [(record.act, record.action) for record in self._records if isinstance(record, ActRecord)]

    def close(self) -> None:
        """Drop the run: cancel its tasks, which end in the loop's next iterations."""
        if not self._closed:
            self._closed = True
            self._cancel()
            self._wake()

    async def aclose(self) -> None:
        """Drop the run and wait for its tasks. One that ignores its cancellation is logged after some seconds."""
        self.close()
        await self._end_tasks()

    async def __aenter__(self) -> Run:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _begin(self) -> asyncio.Task[Any]:
        if self._root is None:
            if self.limits.step_seconds is None:
                self._root = asyncio.create_task(self._main())
            else:
                self._watch = watchdog(self.limits.step_seconds)
                self._root = self._watch.start(self, self._main())
            self._root.add_done_callback(self._ended)
        return self._root

    async def _woken(self) -> None:
        """Return at the next news: a move, the end of a call, an error, the workflow's end."""
        self._driver = asyncio.get_running_loop().create_future()
        try:
            await self._driver
        finally:
            self._driver = None

    async def _main(self) -> Any:
        work = self.workflow.run(self.task, Team(self, self.agents))
        if not inspect.isawaitable(work):
            raise self._fail("`run` must be an `async def`")
        try:
            return await work
        except SystemExit as error:  # it would end the event loop, with everybody's runs
            raise self._fail(with_line(error)) from error

    async def _finish(self, root: asyncio.Task[Any]) -> None:
        """The workflow has ended: well, or with an error."""
        error = asyncio.CancelledError() if root.cancelled() else root.exception()
        if error is None and root.result() is None:
            error = self._fail("it returned no answer (None)")
        elif error is None and not any(isinstance(record, ActRecord) for record in self._records):
            error = self._fail("it ended without one act")
        unanswered = None in self._records
        if error is not None:
            await self.aclose()
            if isinstance(error, WorkflowError):
                raise error
            raise self._fail(with_line(error)) from error
        self._cancel()  # acts that the workflow started and did not wait for
        await self._end_tasks()
        if self._concurrent and not unanswered and not self._sealed:
            again = await replay(self.workflow, self.task, self.agents, self.journal, replace(self.limits, tokens=None))
            self._records, self.proposals, self.invalid = again._records, again.proposals, again.invalid
        self._records = _numbered(self._records)
        self._answer, self.finished = root.result(), True

    async def _in_order(self) -> bool:
        """Put the records and waits of a standing run in the order of a replay; False where there is news meanwhile. An
        act that the workflow has given up makes it a race, which no replay can repeat: its order stays."""
        if not self._concurrent or not self._arrived or self._given_up or self._sealed:
            return True
        news, journal, limits = self._news, self.journal, replace(self.limits, tokens=None)
        async with Run(self.workflow, self.task, self.agents, journal, sealed=True, limits=limits) as again:
            await again.run_until_blocked()
            if self._news != news:
                return False
            for now, then in ((self, again), (again, self)):
                for key, wait in now._waiting.items():
                    if key not in then._waiting or then._waiting[key].act.observation != wait.act.observation:
                        where = "live" if now is self else "on replay"
                        raise self._fail(f"only {where} it stands at {wait.act} as shown there", ReplayMismatch)
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
            if self._concurrent:  # tasks without an effect of their own, between the known ones, end a level a round
                for _ in range(QUIET):
                    await asyncio.sleep(0)
            if left_behind:
                name = type(self.workflow).__name__
                logger.error("workflow '%s' on task '%s' does not let itself be cancelled", name, self.task.id)

    def _open(self) -> list[asyncio.Task[Any]]:
        tasks = [*self._others] if self._root is None else [self._root, *self._others]
        return [task for task in tasks if not task.done()]

    def _ended(self, root: asyncio.Task[Any]) -> None:
        if not root.cancelled():
            root.exception()  # seen: a dropped run's last error is no news
        self._wake()


async def replay(
    workflow: Workflow, task: Task, agents: Sequence[str], journal: Journal, limits: Limits | None = None
) -> Run:
    """Run a finished journal again, every action given as soon as its act is reached; returns the finished run.
    WorkflowError: the workflow raised; ReplayMismatch: it reached something that the journal has not."""
    calls = Journal(tuple(journal.calls()), journal.seed)
    async with Run(workflow, task, agents, calls, sealed=True, limits=limits or Limits()) as run:
        while (acts := await run.next()) is not None:
            for act in acts:
                record = journal.act(*act.key)
                if record is None:
                    raise run._fail(f"a replay reached {act}, which is not in the journal", ReplayMismatch)
                if record.act.observation != act.observation:
                    what = f"{act} is shown another observation on replay: {changed(record.act, act)}"
                    raise run._fail(what, ReplayMismatch)
                run.resolve(act, record.action)
    return run


def _numbered(records: list[Record | None]) -> list[Record | None]:
    """Without what was never answered, and with indices that have no gap."""
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
