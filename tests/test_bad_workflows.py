"""Bad workflows, tasks, observations and journals with every registered sampler: the error names workflow, task and
effect, and concurrent sampling in the same event loop is unaffected."""

import asyncio
import functools
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from marl_verl_testing import ScriptedContext, ScriptedPolicy

from marl_verl import plugins
from marl_verl.algo.sampling import Sample, Sampler
from marl_verl.episode import Team, Workflow
from marl_verl.episode.errors import Limits
from marl_verl.options import build
from marl_verl.tasks import Task, TaskSet
from tests.loops import completed

SAMPLERS = plugins.load().names("samplers")
SIZES = {
    **{"independent": "episodes", "best-of": "episodes", "greedy-baseline": "episodes"},
    **{"demonstrations": "episodes", "shared-rollouts": "episodes"},
    **{"greedy-tree": "candidates", "joint-tree": "joint_actions", "tree-search": "nodes"},
}
POLICY = ScriptedPolicy({"solver": lambda act, session, candidate: f"{act.turn}{candidate}", "judge": "fine"})
LIMITS = Limits(call_seconds=5, episode_seconds=10)


class Good(Workflow):
    """What runs beside the bad ones."""

    async def run(self, task: Task, team: Team) -> str:
        draft = await team["solver"].act(task.prompt)
        verdict = await team["judge"].act(draft.text)
        return (await team["solver"].act(verdict.text)).text


class RaisesLater(Workflow):
    async def run(self, task: Task, team: Team) -> str:
        draft = await team["solver"].act(task.prompt)
        await team["judge"].act(draft.text)
        return [draft.text][1]


class NeverActs(Workflow):
    async def run(self, task: Task, team: Team) -> str:
        return task.prompt


class ActsForNobody(Workflow):
    async def run(self, task: Task, team: Team) -> str:
        draft = await team["solver"].act(task.prompt)
        return (await team["juge"].act(draft.text)).text


class ReturnsNothing(Workflow):
    async def run(self, task: Task, team: Team) -> None:
        await team["solver"].act(task.prompt)


class ExitsBeside(Workflow):
    """Not in the workflow's own task, but in one that it gathers."""

    async def run(self, task: Task, team: Team) -> str:
        async def lane(name: str) -> str:
            await team["solver"].act(task.prompt, slot=name)
            raise SystemExit("bye")

        return str(await asyncio.gather(lane("a")))


class Own(BaseException):
    """No Exception."""


class RaisesItsOwn(Workflow):
    async def run(self, task: Task, team: Team) -> str:
        await team["solver"].act(task.prompt)
        raise Own("end")


class Fair(TaskSet):
    quick = True  # test_scoring.py has those in processes of their own

    def score(self, task: Task, answer: Any) -> Any:
        return 0.5

    def public_score(self, task: Task, answer: Any) -> Any:
        return 0.25


class ScoreRaises(Fair):
    def score(self, task: Task, answer: Any) -> Any:
        raise ZeroDivisionError("no reference")


BAD_WORKFLOWS: list[tuple[type[Workflow], str]] = [
    (RaisesLater, "at act judge:0: IndexError: list index out of range (test_bad_workflows.py, line "),
    (NeverActs, "before any act: the workflow ended without an act"),
    (ActsForNobody, "at act solver:0: the team has no agent 'juge': did you mean 'judge'?"),
    (ReturnsNothing, "at act solver:0: the workflow returned no answer (None)"),
    (ExitsBeside, "at act solver:a: SystemExit: bye (test_bad_workflows.py, line "),
    (RaisesItsOwn, "at act solver:0: Own: end (test_bad_workflows.py, line "),
]


def good(number: int) -> ScriptedContext:
    return ScriptedContext(Good(), Task(f"good{number}", "question"), POLICY, Fair(), limits=LIMITS)


def sampled(name: str, *all_: ScriptedContext) -> list[Sample]:
    """Side by side in one loop."""

    async def go() -> list[Sample]:
        sampler: Sampler = build(plugins.load().get("samplers", name), {SIZES[name]: 2}, "sampler")
        return await asyncio.gather(*(sampler.sample(context) for context in all_))

    with ThreadPoolExecutor(max_workers=1) as thread:  # as in a rollout worker: KeyboardInterrupt is no Ctrl-C there
        return thread.submit(completed, go(), 3).result()


@functools.cache
def alone(name: str, number: int) -> Sample:
    return sampled(name, good(number))[0]


def sample_beside_good(name: str, bad: ScriptedContext) -> Sample:
    """The sample of a bad task; checks that two good ones beside it are as they are alone."""
    found, *beside = sampled(name, bad, good(0), good(1))
    for number, other in enumerate(beside):
        one = alone(name, number)
        assert other.episodes
        assert not other.failures
        for each in ("turns", "journal", "answer", "score"):
            assert [getattr(e, each) for e in other.episodes] == [getattr(e, each) for e in one.episodes]
    return found


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_bad_workflow_fails_by_itself_and_says_where(sampler: str) -> None:
    for workflow, message in BAD_WORKFLOWS:
        task = Task("bad", "a longer question")
        sample = sample_beside_good(sampler, ScriptedContext(workflow(), task, POLICY, Fair(), limits=LIMITS))
        assert sample.failures
        for failure in sample.failures:
            assert failure.reason == "workflow-error"
            assert f"workflow '{workflow.__name__}' on task 'bad', {message}" in failure.detail
            assert "Traceback" in failure.trace
        assert not any(episode.finished for episode in sample.episodes)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_task_that_cannot_be_scored_fails_by_itself(sampler: str) -> None:
    context = ScriptedContext(Good(), Task("bad", "q"), POLICY, ScoreRaises(), limits=LIMITS)
    sample = sample_beside_good(sampler, context)
    assert {failure.reason for failure in sample.failures} == {"score-error"}
    message = r"workflow 'Good' on task 'bad', scoring: ZeroDivisionError: no reference \(test_bad_.*, line \d+\)"
    assert all(re.fullmatch(message, failure.detail) for failure in sample.failures)
    assert not any(episode.finished for episode in sample.episodes)
