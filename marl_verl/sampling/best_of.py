"""Best of n: n independent sessions, of which the team hands in the one that looks best without the solution.

    g* = argmax over g of public(answer_g),   the lowest g of equals

`public` is `TaskSet.public_score`: public tests, a check of the form. What the episode is then worth is for `score` to
say, so this is how inference does with n times the samples (Chen et al., arXiv 2107.03374, filter by public tests in
this way). Without anything public to choose by, take `independent`.
"""

from __future__ import annotations

from marl_verl.episode import Episode
from marl_verl.sampling.attempt import ask, attempt, scored, together
from marl_verl.sampling.base import Failure, Rollouts, Sample, Sampler, drive


class BestOf(Sampler):
    """`sessions` episodes a task, all at once. The one with the highest public score is the sample's only episode; the
    turns of the others stand beside it, each with its own session and its own rewards, and are rows as well."""

    @property
    def public(self) -> bool:
        """Always."""
        return True

    async def sample(self, rollouts: Rollouts) -> Sample:
        """All sessions of one task, concurrently. Where all of them fail there is no episode."""
        work = (attempt(rollouts, g, _judged(rollouts, g)) for g in range(rollouts.sessions))
        done = await together(work)
        found = Sample(failures=[each for each in done if isinstance(each, Failure)])
        judged = [each for each in done if not isinstance(each, Failure)]
        if judged:
            best, _ = max(judged, key=lambda pair: pair[1])  # the first of equals
            best.others = [turn for episode, _ in judged if episode is not best for turn in episode.turns]
            found.episodes = [best]
        return found


async def _judged(rollouts: Rollouts, session: int) -> tuple[Episode, float]:
    """Drive one run to its end: (its scored episode, its public score)."""
    async with rollouts.start(session) as run:
        await drive(run, lambda act: ask(rollouts, act, session))
        episode = await scored(rollouts, rollouts.finish(run, session))
        return episode, await scored(rollouts, rollouts.public_score(episode.answer))
