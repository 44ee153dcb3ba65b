"""The greedy tree of AT-GRPO: candidates from one shared state, each with its own reward; the best goes on."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marl_verl_at_grpo.greedy_tree import GreedyTree
from marl_verl_testing import ScriptedContext, ScriptedPolicy
from marl_verl_testing.algorithm import row_of as row
from marl_verl_testing.rows import algorithm
from marl_verl_testing.workflows import TASK, Hashed, Programmed, own_words, talkers, workflows

from marl_verl.algo.advantage import RowTable
from marl_verl.algo.sampling import Sample
from marl_verl.episode import Act, Episode, Team, Turn, Workflow
from marl_verl.tasks import Task, TaskSet
from tests.loops import completed


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


def tree(
    workflow: Workflow, policy: ScriptedPolicy = BY_NUMBER, k: int = 3, partial_value: Any = "proposal", **how: Any
) -> tuple[Sample, ScriptedContext]:
    context = ScriptedContext(workflow, how.pop("task", Task("q", "do:")), policy, how.pop("tasks", Letters()), **how)
    return completed(GreedyTree(k, partial_value).sample(context)), context


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
    assert [turn.observation[-1]["content"] for turn in found.turns[3:6]] == ["do: c2"] * 3
    assert [turn.observation[-1]["content"] for turn in found.turns[9:]] == ["do: c2 t2 c2"] * 3
    assert team(found) == [0, 1, 2, 2, 3, 4, 4, 5, 6, 6, 7, 8]
    (episode,) = found.episodes
    assert (episode.id, episode.answer, episode.score, episode.finished) == ("q_0_3-2", "do: c2 t2 c2 t2", 8.0, True)
    assert [turn.index for turn in episode.turns] == [2, 5, 8, 11]
    assert [turn.index for turn in episode.off_path_turns] == [0, 1, 3, 4, 6, 7, 9, 10]
    assert [record.action.text for record in episode.journal.acts()] == ["c2", "t2", "c2", "t2"]
    assert len(context.asked) == 12
    assert not found.extra_tokens


def test_of_equal_candidates_the_lowest_number_is_chosen_in_any_arrival_order() -> None:
    class Same(TaskSet):
        def score(self, task: Task, answer: Any) -> float:
            return float("c0" not in answer)

    for order in range(5):
        found, _ = tree(CoderTester(proposes=True), tasks=Same(), order=order)
        assert team(found)[:3] == [0, 1, 1]
        assert [turn.parent for turn in found.turns[3:]] == ["0-1"] * 3
        assert [turn.index for turn in found.episodes[0].turns] == [1, 3]


def test_role_rewards_and_the_mix_decide_who_goes_on() -> None:
    def brief(task: Task, turn: Turn, episode: Episode) -> float:
        return 10.0 if turn.action.text == "c0" else 0.0

    found, _ = tree(CoderTester(proposes=True), rewards={"coder": brief})
    rewards = [{"team": team, "role": role} for team, role in ((0, 10), (1, 0), (2, 0))]
    assert [turn.rewards for turn in found.turns[:3]] == rewards
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


def test_a_candidate_that_fails_is_no_row_and_the_others_continue() -> None:
    found, _ = tree(CoderTester(proposes=True), failing=lambda request: request[2] == "0-2" and OSError("no server"))
    assert [turn.node for turn in found.turns] == ["0-0", "0-1", "1-0", "1-1", "1-2"]
    assert [turn.index for turn in found.turns] == [0, 1, 3, 4, 5]
    assert {turn.parent for turn in found.turns[2:]} == {"0-1"}
    assert [(failure.session, failure.reason) for failure in found.failures] == [(0, "policy-error")]
    assert found.failures[0].detail == "workflow 'CoderTester' on task 'q', act coder:0: OSError: no server"


@given(workflow=workflows(sequential=True, failing=True, acts=5), seed=st.integers(0, 99), k=st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_siblings_are_the_rows_of_one_task_turn_and_agent(workflow: Programmed, seed: int, k: int) -> None:
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
