"""Best of n: the session with the highest public score is chosen, and the turns of the others are kept."""

import asyncio
from typing import Any

import pytest
from marl_verl_baselines import BestOf
from marl_verl_testing import ScriptedContext, ScriptedPolicy

from marl_verl.algo.sampling import Candidate, Independent, Sample
from marl_verl.episode import Act, Action, Team, Workflow
from marl_verl.tasks import Task, TaskSet
from tests.loops import completed

QUESTION = Task("t1", "question")


class Pair(Workflow):
    """A draft, and an answer."""

    async def run(self, task: Task, team: Team) -> str:
        draft = await team["a"].act(task.prompt)
        return (await team["b"].act(draft.text)).text


class Judged(TaskSet):
    """Answers are "score/public"."""

    def score(self, task: Task, answer: Any) -> float:
        return float(answer.split("/")[0])

    def public_score(self, task: Task, answer: Any) -> float:
        return float(answer.split("/")[1])


def sample(context: ScriptedContext, episodes: int = 3, kind: type[BestOf | Independent] = BestOf) -> Sample:
    return completed(kind(episodes).sample(context))


def pairs(answers: list[str], **options: Any) -> ScriptedContext:
    """Session g answers the g-th."""

    def answer(act: Act, session: int, candidate: Candidate) -> str:
        return answers[session]

    return ScriptedContext(Pair(), QUESTION, ScriptedPolicy({"a": "draft", "b": answer}), tasks=Judged(), **options)


def test_the_highest_public_score_is_chosen_whatever_the_task_s_own_score_says() -> None:
    sampled = sample(pairs(["1/0.2", "0/0.9", "1/0.5"]))
    (episode,) = sampled.episodes
    assert (episode.session, episode.answer, episode.score, episode.success) == (1, "0/0.9", 0.0, False)
    assert [(turn.session, turn.index) for turn in episode.turns] == [(1, 0), (1, 1)]
    assert [(turn.session, turn.index) for turn in episode.off_path_turns] == [(0, 0), (0, 1), (2, 0), (2, 1)]
    assert [turn.team_reward for turn in sampled.turns] == [1, 1, 0, 0, 1, 1]  # each its own session's


# Independent sampling: episodes are concurrent, and a failed one does not affect others


POLICY = ScriptedPolicy({"solver": ["draft", "better"], "judge": lambda act: f"seen {act.observation[0]['content']}"})


class Two(Workflow):
    """The solver twice, and two judges beside each other."""

    async def run(self, task: Task, team: Team) -> str:
        draft = await team["solver"].act(task.prompt)
        await asyncio.gather(team["judge"].act(draft.text, slot="a"), team["judge"].act(draft.text, slot="b"))
        return (await team["solver"].act(draft.text)).text


def test_episodes_and_the_acts_of_one_episode_are_sampled_at_the_same_time() -> None:
    class Crowd(ScriptedContext):
        """No judge's request is answered before all judges of all episodes have made one."""

        judges = 0
        all_here: asyncio.Event

        async def act(self, act: Act, session: int, candidate: Any = 0, agent: str | None = None) -> Action:
            if act.agent == "judge":
                self.judges += 1
                if self.judges == 2 * 50:
                    self.all_here.set()
                await asyncio.wait_for(self.all_here.wait(), 60)
            return await super().act(act, session, candidate)

    context = Crowd(Two(), QUESTION, POLICY)
    context.all_here = asyncio.Event()
    assert len(sample(context, 50, Independent).episodes) == 50


@pytest.mark.parametrize(
    ("trouble", "reason", "message"),
    [
        (ConnectionError("no server"), "policy-error", "act judge:a: ConnectionError: no server"),
        (TimeoutError("60 s"), "timeout", "act judge:a: TimeoutError: 60 s"),
    ],
)
def test_a_failed_session_has_a_reason_and_the_others_continue(trouble: Exception, reason: str, message: str) -> None:
    failing: Any = lambda request: request[0::3] == (1, "judge") and trouble  # noqa: E731
    sampled = sample(ScriptedContext(Two(), QUESTION, POLICY, failing=failing), kind=Independent)
    assert [episode.session for episode in sampled.episodes] == [0, 2]
    (failure,) = sampled.failures
    assert (failure.session, failure.reason) == (1, reason)
    assert failure.detail == f"workflow 'Two' on task 't1', {message}"
    assert "Traceback" in failure.trace
