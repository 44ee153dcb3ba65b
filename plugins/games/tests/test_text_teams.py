"""Teams for tasks with a text: what each agent sees, and which answer is the team's."""

from __future__ import annotations

import asyncio

import pytest
from marl_verl_games.text_teams import TextDiscussion, TextParallel, TextPipeline, TextSolverVerifier, vote
from marl_verl_testing import ScriptedContext, ScriptedPolicy, check_workflow, shown

from marl_verl import Task, Workflow
from marl_verl.algo.sampling import Independent

TASK = Task("q", "2 + 2?")


def test_the_solver_answers_again_until_the_verifier_accepts() -> None:
    policy = ScriptedPolicy({"solver": ["5", "4", "3"], "verifier": ["No, too much.", "I accept."]})
    run = check_workflow(TextSolverVerifier(rounds=3), TASK, policy)
    assert (run.answer, run.proposals[0]) == ("4", "5")
    texts = [shown(record.act) for record in run.journal]
    assert texts[0] == "2 + 2?"
    assert "Proposed answer:\n5" in texts[1]
    assert "A verifier says:\nNo, too much." in texts[2]
    assert len(texts) == 4
    assert check_workflow(TextSolverVerifier(rounds=1), TASK, policy).answer == "5"


def test_the_last_of_parallel_agents_sees_the_answers_of_the_others() -> None:
    policy = ScriptedPolicy({"a": "4", "b": "5", "judge": lambda act: shown(act).split("Answer 2:\n")[1][0]})
    run = check_workflow(TextParallel(), TASK, policy)
    assert (run.answer, run.proposals) == ("5", ["4"])


def test_each_of_a_pipeline_sees_the_answer_before_it() -> None:
    policy = ScriptedPolicy({"a": "x", "b": lambda act: shown(act)[-25] + "y", "c": "z"})
    run = check_workflow(TextPipeline(), TASK, policy)
    assert run.answer == "z"
    assert [("so far:\nx" in shown(record.act)) for record in run.journal] == [False, True, False]


def test_a_discussion_ends_with_a_vote() -> None:
    policy = ScriptedPolicy({"a": ["1", "1"], "b": ["2", "3"], "c": ["3", "3"]})
    run = check_workflow(TextDiscussion(), TASK, policy)
    assert (run.answer, run.proposals) == ("3", ["1", "3"])
    assert "Another agent's answer:\n2" in shown(list(run.journal)[3].act)


def test_a_vote_compares_tagged_answers_and_prefers_the_first_agent() -> None:
    assert vote({"a": "so <answer>4</answer>", "b": "5", "c": "4"}) == "so <answer>4</answer>"
    assert vote({"a": "7", "b": "5"}) == "7"


@pytest.mark.parametrize("workflow", [TextParallel(), TextPipeline(), TextDiscussion()])
def test_a_team_of_one_is_refused(workflow: Workflow) -> None:
    async def run() -> None:
        context = ScriptedContext(workflow, TASK, ScriptedPolicy({"a": "4"}))
        sample = await Independent(episodes=1).sample(context)
        assert "needs two agents or more, got a" in sample.failures[0].detail

    asyncio.run(run())
