"""The greedy tree of AT-GRPO: candidates from one shared state, each with its own reward; the best goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marl_verl_at_grpo.greedy_tree import GreedyTree
from marl_verl_testing import ScriptedContext, ScriptedPolicy
from marl_verl_testing.algorithm import row_of as row
from marl_verl_testing.rows import algorithm
from marl_verl_testing.workflows import TASK, Hashed, Joint, Lanes, Programmed, Solo, own_words, talkers, workflows

from marl_verl.algo.advantage import RowTable
from marl_verl.algo.sampling import Sample
from marl_verl.episode import Act, Action, Episode, Limits, Team, Turn, Workflow
from marl_verl.errors import MarlError
from marl_verl.options import build
from marl_verl.tasks.base import Task, TaskSet


class CoderTester(Workflow):
    """The coder writes, the tester looks at it, round by round; the answer has all their texts."""

    rounds: int = 1
    proposes: bool = False

    async def run(self, task: Task, team: Team) -> str:
        history = task.prompt
        for _ in range(self.rounds):
            for agent in ("coder", "tester"):
                history += " " + (await team[agent].act(history)).text
                if self.proposes:
                    team.propose(history)
        return history


class Letters(TaskSet):
    """An answer is worth the sum of its words' numbers: "c2" and "t2" are worth 2 each."""

    def score(self, task: Task, answer: Any) -> float:
        return float(sum(int(word[1:]) for word in answer.split() if word[1:].isdigit()))


def by_number(act: Act, session: int, candidate: Any) -> str:
    """Candidate k is "c{k}" or "t{k}"; the last one is the best. In a rollout to the end, all agents answer x."""
    number = str(candidate).rpartition("-")[2]
    return f"{act.agent[0]}{number}" if number.isdigit() else "x"


BY_NUMBER = ScriptedPolicy({"coder": by_number, "tester": by_number})
Q = Task("q", "do:")


def tree(
    workflow: Workflow, policy: ScriptedPolicy = BY_NUMBER, k: int = 3, partial_value: Any = "proposal", **how: Any
) -> tuple[Sample, ScriptedContext]:
    given: dict[str, Any] = {"tasks": Letters(), "context": ScriptedContext} | how
    context = given.pop("context")(workflow, given.pop("task", Q), policy, **given)

    async def go() -> Sample:
        found = await GreedyTree(k, partial_value).sample(context)
        assert len(asyncio.all_tasks()) == 1  # nothing is left running
        return found

    return asyncio.run(go()), context


def team(found: Sample) -> list[float]:
    return [turn.rewards["team"] for turn in found.turns]


def test_the_next_agent_sees_the_winner_and_every_candidate_is_a_row_with_its_own_reward() -> None:
    found, context = tree(CoderTester(rounds=2, proposes=True))
    assert [(t.index, t.node, t.parent, t.agent, t.turn) for t in found.turns] == [
        *[(k, f"0-{k}", None, "coder", 0) for k in range(3)],
        *[(3 + k, f"1-{k}", "0-2", "tester", 0) for k in range(3)],
        *[(6 + k, f"2-{k}", "1-2", "coder", 1) for k in range(3)],
        *[(9 + k, f"3-{k}", "2-2", "tester", 1) for k in range(3)],
    ]
    assert [shown_to(turn) for turn in found.turns[3:6]] == ["do: c2"] * 3
    assert [shown_to(turn) for turn in found.turns[9:]] == ["do: c2 t2 c2"] * 3
    assert team(found) == [0, 1, 2, 2, 3, 4, 4, 5, 6, 6, 7, 8]
    (episode,) = found.episodes
    assert (episode.id, episode.answer, episode.score, episode.finished) == ("q_0_3-2", "do: c2 t2 c2 t2", 8.0, True)
    assert [turn.index for turn in episode.turns] == [2, 5, 8, 11]
    assert [turn.index for turn in episode.off_path_turns] == [0, 1, 3, 4, 6, 7, 9, 10]
    assert [record.action.text for record in episode.journal.acts()] == ["c2", "t2", "c2", "t2"]
    assert len(context.asked) == 12
    assert not found.extra_tokens


def shown_to(turn: Turn) -> str:
    return turn.observation[-1]["content"]


def test_a_candidate_in_a_joint_move_has_the_mark_that_the_rollout_sets() -> None:
    class Pair(Workflow):
        async def run(self, task: Task, team: Team) -> str:
            said = await team.act({"coder": task.prompt, "tester": task.prompt})
            if said["coder"].text == "c1":
                team.invalid(said["coder"], "one")
            return " ".join(action.text for action in said.values())

    found, _ = tree(Pair(), partial_value="rollout")
    assert [turn.invalid for turn in found.turns] == [None, "one", None, None, None, None]


def test_of_equal_candidates_the_lowest_number_is_chosen_in_any_arrival_order() -> None:
    class Same(TaskSet):
        def score(self, task: Task, answer: Any) -> float:
            return float("c0" not in answer)

    class LastFirst(ScriptedContext):
        async def act(self, act: Act, session: int, candidate: Any = 0, agent: str | None = None) -> Action:
            for _ in range(20 * (3 - int(candidate[-1]))):
                await asyncio.sleep(0)
            return await super().act(act, session, candidate, agent)

    found, _ = tree(CoderTester(proposes=True), tasks=Same(), context=LastFirst)
    assert team(found)[:3] == [0, 1, 1]
    assert [turn.parent for turn in found.turns[3:]] == ["0-1"] * 3
    assert [turn.index for turn in found.episodes[0].turns] == [1, 3]


def test_role_rewards_and_the_mix_decide_who_goes_on() -> None:
    def brief(task: Task, turn: Turn, episode: Episode) -> float:
        return 10.0 if turn.action.text == "c0" else 0.0

    found, _ = tree(CoderTester(proposes=True), rewards={"coder": brief})
    assert [turn.rewards for turn in found.turns[:3]] == [
        {"team": 0, "role": 10},
        {"team": 1, "role": 0},
        {"team": 2, "role": 0},
    ]
    assert [turn.parent for turn in found.turns[3:]] == ["0-0"] * 3
    mix = algorithm("at-grpo", **{"alpha": 6.0}).rewards
    found, _ = tree(CoderTester(proposes=True), rewards={"coder": brief, "tester": brief}, mix=mix)
    assert [turn.parent for turn in found.turns[3:]] == ["0-2"] * 3  # 6 * 2 + 0 against 6 * 0 + 10


def test_a_state_without_a_proposal_is_rolled_out_and_the_tokens_are_counted() -> None:
    found, context = tree(CoderTester(rounds=2))
    # candidates 0, 1, 2 of acts 0, 1, 2 are played on for 3, 2 and 1 acts of one letter; act 3 ends the workflow
    assert found.extra_tokens == {"rollout": 3 * (3 + 2 + 1)}
    sampled = sum(len(action.response_ids) for action in context.given)
    assert sampled == found.extra_tokens["rollout"] + sum(len(turn.action.response_ids) for turn in found.turns)
    assert len(context.asked) == 12 + 18
    assert team(found) == [0, 1, 2, 2, 3, 4, 4, 5, 6, 6, 7, 8]  # "x" is worth nothing


@pytest.mark.parametrize(
    ("partial_value", "rewards", "asked"),
    [("proposal", [0, 1, 2], 6), ("rollout", [0, 1, 2], 9), ("zero", [0, 0, 0], 6)],
)
def test_what_a_state_is_worth_is_an_option(partial_value: str, rewards: list[float], asked: int) -> None:
    found, context = tree(CoderTester(proposes=True), partial_value=partial_value)
    assert team(found)[:3] == rewards
    assert len(context.asked) == asked


class Broken(ScriptedContext):
    """Requests that fail, by act and candidate."""

    fails: Callable[[Act, str], bool] = staticmethod(lambda act, name: False)

    async def act(self, act: Act, session: int, candidate: Any = 0, agent: str | None = None) -> Action:
        if self.fails(act, candidate):
            raise ConnectionError("no server")
        return await super().act(act, session, candidate, agent)


def test_a_candidate_that_fails_is_no_row_and_the_others_continue() -> None:
    class Once(Broken):
        fails = staticmethod(lambda act, name: name == "0-2")

    found, _ = tree(CoderTester(proposes=True), context=Once)
    assert [turn.node for turn in found.turns] == ["0-0", "0-1", "1-0", "1-1", "1-2"]
    assert [turn.index for turn in found.turns] == [0, 1, 3, 4, 5]
    assert {turn.parent for turn in found.turns[2:]} == {"0-1"}
    assert [(failure.session, failure.reason) for failure in found.failures] == [(0, "policy-error")]
    assert found.failures[0].detail == "workflow 'CoderTester' on task 'q', act coder:0: ConnectionError: no server"


def test_where_all_candidates_fail_the_path_ends_before_them() -> None:
    class Testers(Broken):
        fails = staticmethod(lambda act, name: act.key == ("tester", "1"))

    found, _ = tree(CoderTester(rounds=3, proposes=True), context=Testers)
    assert [turn.node for turn in found.turns] == [f"{n}-{k}" for n in range(3) for k in range(3)]
    (episode,) = found.episodes
    assert (episode.finished, episode.answer, episode.score) == (False, "do: c2 t2 c2", 6.0)
    assert [turn.index for turn in episode.turns] == [2, 5, 8]
    assert [failure.reason for failure in found.failures] == ["policy-error"] * 3

    class NoActions(Broken):
        fails = staticmethod(lambda act, name: True)

    found, _ = tree(CoderTester(), context=NoActions)
    assert (found.episodes, found.turns, len(found.failures)) == ([], [], 3)


def test_a_workflow_that_raises_after_an_action_fails_that_candidate() -> None:
    class Picky(CoderTester):
        async def run(self, task: Task, team: Team) -> str:
            draft = (await team["coder"].act(task.prompt)).text
            if draft == "c2":
                raise ValueError("cannot read c2")
            return draft + " " + (await team["tester"].act(draft)).text

    found, _ = tree(Picky())
    assert [turn.node for turn in found.turns] == ["0-0", "0-1", "1-0", "1-1", "1-2"]
    assert found.episodes[0].answer == "c1 t2"
    (failure,) = found.failures
    assert failure.reason == "workflow-error"
    assert "ValueError: cannot read c2" in failure.detail


def test_a_workflow_that_cannot_begin_fails_every_candidate() -> None:
    class Stillborn(Workflow):
        async def run(self, task: Task, team: Team) -> str:
            raise ValueError("nothing to do")

    found, context = tree(Stillborn())
    assert [failure.reason for failure in found.failures] == ["workflow-error"] * 3
    assert (found.episodes, context.asked) == ([], [])


def test_a_score_that_fails_fails_its_candidate_only() -> None:
    class Moody(Letters):
        def score(self, task: Task, answer: Any) -> float:
            if answer.endswith("t2"):
                raise ZeroDivisionError("by zero")
            return super().score(task, answer)

    found, _ = tree(CoderTester(proposes=True), tasks=Moody())
    assert [turn.index for turn in found.episodes[0].turns] == [2, 4]
    assert [failure.reason for failure in found.failures] == ["score-error"]


def test_the_time_limit_is_from_one_act_to_the_next() -> None:
    class Slow(ScriptedContext):
        async def act(self, act: Act, session: int, candidate: Any = 0, agent: str | None = None) -> Action:
            await asyncio.sleep(60 if candidate == "1-2" else 0.3)
            return await super().act(act, session, candidate, agent)

    found, _ = tree(CoderTester(rounds=2, proposes=True), context=Slow, limits=Limits(episode_seconds=1.0))
    assert found.episodes[0].finished  # four acts took longer than the limit
    assert [failure.reason for failure in found.failures] == ["timeout"]
    assert [turn.index for turn in found.episodes[0].turns] == [2, 4, 8, 11]


def test_the_agents_of_a_joint_move_come_one_after_the_other_and_see_the_same() -> None:
    program = Programmed((Joint(("solver", "critic")), Solo("planner")))
    found, _ = tree(program, talkers(), k=2, partial_value="zero", tasks=Hashed(), task=TASK)
    assert [(turn.agent, turn.node, turn.parent) for turn in found.turns] == [
        ("solver", "0-0", None),
        ("solver", "0-1", None),
        ("critic", "1-0", "0-0"),
        ("critic", "1-1", "0-0"),
        ("planner", "2-0", found.turns[4].parent),
        ("planner", "2-1", found.turns[4].parent),
    ]
    texts = {turn.node: turn.action.text for turn in found.turns}
    assert all(texts["0-0"] not in shown_to(turn) for turn in found.turns[2:4])  # a joint move
    assert texts["0-0"] in shown_to(found.turns[4])


def test_concurrent_lanes_come_one_after_the_other_those_first_that_waited_first() -> None:
    program = Programmed((Lanes("solver", (2, 1, 1)), Solo("critic")))
    found, _ = tree(program, talkers(), k=2, partial_value="zero", tasks=Hashed(), task=TASK)
    slots = [f"{turn.agent}:{turn.slot}" for turn in found.turns[::2]]
    assert slots == ["solver:lane1at0", "solver:lane1at1", "solver:lane1at2", "solver:lane1at0#1", "critic:0"]
    assert found.episodes[0].finished


@given(workflow=workflows(sequential=True, failing=True, acts=5), seed=st.integers(0, 99), k=st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_on_sequential_workflows_siblings_are_the_rows_of_one_task_turn_and_agent(
    workflow: Programmed, seed: int, k: int
) -> None:
    found, _ = tree(workflow, talkers(seed), k, tasks=Hashed(), rewards={"solver": own_words}, task=TASK)
    if not found.turns:
        return
    table = RowTable.from_rows([row(turn) for turn in found.turns])
    turn, siblings = (
        algorithm("at-grpo", **{"group": ["uid", column, "agent"]}).compute(table) for column in ("turn", "parent")
    )
    np.testing.assert_array_equal(turn.advantage, siblings.advantage)
    for one in range(len(table)):
        rewards = [sum(found.turns[i].rewards.values()) for i in turn.members(one)]
        spread = np.std(rewards, ddof=1) + 1e-6 if len(rewards) > 1 else 1.0
        assert turn.advantage[one] == pytest.approx((turn.reward[one] - np.mean(rewards)) / spread, abs=1e-9)


def test_the_option_is_checked() -> None:
    with pytest.raises(
        MarlError, match=r"'sampler.partial_value' must be one of 'proposal', 'latest', 'rollout', 'zero'"
    ):
        build(GreedyTree, {"partial_value": "proposals"}, "sampler")
