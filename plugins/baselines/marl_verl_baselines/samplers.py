"""Samplers of independent episodes: with a greedy one as baseline, and the best of n."""

from dataclasses import replace
from typing import ClassVar

from marl_verl.algo.sampling import Independent, Sample, Sampler, SamplingContext, scored
from marl_verl.algo.sampling.context import GREEDY
from marl_verl.algo.sampling.sampler import attempts, sample_episode
from marl_verl.episode import Episode
from marl_verl.options import Count


class GreedyBaseline(Independent):
    """Independent episodes, and beside them one in which every agent acts at temperature 0.

    Column `greedy` of a row is the mean mixed reward of its agent's turns in the greedy episode; of an agent that did
    not act there, its team reward alone, mixed. Without a greedy episode the task has no rows.
    """

    greedy: ClassVar[bool] = True

    async def sample(self, context: SamplingContext) -> Sample:
        async def episode(context: SamplingContext, session: int) -> Episode:
            return await sample_episode(context, session, GREEDY if session == self.episodes else 0)

        episodes, failures = await attempts(context, self.episodes + 1, episode)
        if not episodes or episodes[-1].session != self.episodes:
            return Sample(failures=failures, dropped=len(episodes))
        greedy = episodes.pop()
        rewards: dict[str, list[float]] = {}
        for turn, reward in zip(greedy.turns, context.value(greedy.turns) if greedy.turns else (), strict=True):
            rewards.setdefault(turn.role, []).append(reward)
        for turn in (turn for episode in episodes for turn in episode.turns):
            if turn.role not in rewards:
                idle = replace(turn, rewards={}, team_reward=context.outcome(turn, greedy))
                rewards[turn.role] = context.value([idle])
            turn.columns[GREEDY] = sum(rewards[turn.role]) / len(rewards[turn.role])
        tokens = {GREEDY: sum(turn.length for turn in greedy.turns)}
        return Sample(episodes, failures, extra_tokens=tokens, greedy=greedy)


class BestOf(Sampler):
    """Best of n: n independent episodes, of which the one with the best public score is chosen.

        g* = argmax over g of public(answer_g),   the lowest g of equals

    `public` is `TaskSet.public_score`: public tests, a format check. `score` then scores the chosen episode, as at
    inference with n samples (Chen et al., arXiv 2107.03374, filter by public tests in this way). The chosen episode is
    the only one of the sample; the turns of the others are its `off_path_turns`, and rows as well.
    """

    one_side: ClassVar[str | None] = "it chooses an episode by one public score of the whole team"
    public = True
    episodes: Count = 8

    async def sample(self, context: SamplingContext) -> Sample:
        judged, failures = await attempts(context, self.episodes, _judged)
        if not judged:
            return Sample(failures=failures)
        best, _ = max(judged, key=lambda pair: pair[1])  # the first of equals
        best.off_path_turns = [turn for episode, _ in judged if episode is not best for turn in episode.turns]
        return Sample([best], failures)


async def _judged(context: SamplingContext, session: int) -> tuple[Episode, float]:
    episode = await sample_episode(context, session)
    return episode, await scored(context, context.public_score(episode.answer))
