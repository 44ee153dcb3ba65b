"""Independent sampling: n sessions a task, none knowing of the others.

    episode_g ~ pi(. | task),  g = 0 .. sessions - 1

All sessions go at once, and each act is sampled as soon as its run reaches it: no episode waits for another, and no
agent for one that acts beside it. The time for a task is that of its slowest episode's critical path.
"""

from __future__ import annotations

import asyncio
import traceback

from marl_verl.episode import Act, Action, Episode, WorkflowError
from marl_verl.errors import MarlError
from marl_verl.sampling.base import Failure, Reason, Rollouts, Sample, Sampler, drive


class Independent(Sampler):
    """Every session by itself.

    Options:
        episode_seconds: longest time for one session, its score included; None for no limit.
    """

    episode_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.episode_seconds is not None and self.episode_seconds <= 0:
            raise MarlError(f"independent: episode_seconds must be above 0, got {self.episode_seconds}")

    async def sample(self, rollouts: Rollouts) -> Sample:
        """All sessions of one task, concurrently."""
        done = await asyncio.gather(*(self._session(rollouts, session) for session in range(rollouts.sessions)))
        return Sample(
            episodes=[each for each in done if isinstance(each, Episode)],
            failures=[each for each in done if isinstance(each, Failure)],
        )

    async def _session(self, rollouts: Rollouts, session: int) -> Episode | Failure:
        limit = asyncio.timeout(self.episode_seconds)
        try:
            async with limit:
                return await self._episode(rollouts, session)
        except _Failed as failed:
            return Failure(session, failed.reason, str(failed), "".join(traceback.format_exception(failed.__cause__)))
        except TimeoutError:
            if not limit.expired():
                raise  # not ours
            return Failure(session, "timeout", f"the episode took longer than {self.episode_seconds} s")

    async def _episode(self, rollouts: Rollouts, session: int) -> Episode:
        """Drive one run to its end and score it. Raises _Failed for whatever goes wrong in one of its three parts."""

        async def sample(act: Act) -> Action:
            try:
                return await rollouts.act(act, session)
            except TimeoutError as error:
                raise _Failed("timeout", error, str(act)) from error
            except Exception as error:  # the session fails, and says why; the others go on
                raise _Failed("policy-error", error, str(act)) from error

        try:
            run = rollouts.start(session)
            async with run:
                await drive(run, sample)
        except WorkflowError as error:
            raise _Failed("workflow-error", error) from error
        try:
            return await rollouts.finish(run, session)
        except Exception as error:  # the session fails, and says why; the others go on
            raise _Failed("score-error", error) from error


class _Failed(Exception):
    """A session that failed, with the class of its failure; `__cause__` is the error itself."""

    def __init__(self, reason: Reason, error: Exception, what: str = "") -> None:
        said = str(error) if isinstance(error, MarlError) else f"{type(error).__name__}: {error}"
        super().__init__(f"{what}: {said}" if what else said)
        self.reason = reason
