"""`check_sampler`: every sampler passes on random workflows, and each violation is reported."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marl_verl_at_grpo.greedy_tree import GreedyTree
from marl_verl_magrpo.joint_tree import JointTree
from marl_verl_mars2.tree_search import TreeSearch
from marl_verl_testing import check_sampler
from marl_verl_testing.workflows import TASK, Hashed, Joint, Mark, Programmed, Solo, own_words, talkers, workflows

from marl_verl.algo.sampling import (
    BestOf,
    GreedyBaseline,
    Independent,
    Sample,
    Sampler,
    SamplingContext,
    ask,
    attempt,
    drive,
)
from marl_verl.episode import Act, Action, Workflow
from marl_verl.tasks.base import Task

ROLES = {"solver": own_words}
STEPS = Programmed((Solo("solver"), Mark("propose"), Solo("critic"), Mark("propose"), Solo("solver")))


SAMPLERS: list[Sampler] = [
    Independent(),
    BestOf(),
    GreedyBaseline(3),
    GreedyTree(),
    GreedyTree(partial_value="rollout"),
    GreedyTree(partial_value="zero"),
    JointTree(max_nodes=7, stop_above=0.6),
    JointTree(partial_value="zero"),
    JointTree(joint="cross", max_nodes=30),
    TreeSearch(),
    TreeSearch(strategy="stack", prior="beta", arms=["solver", "critic"], partial_value="zero"),
    TreeSearch(guide="public", partial_value="zero"),
]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
@given(workflow=workflows(failing=True), seed=st.integers(0, 99), count=st.integers(1, 3))
@settings(max_examples=6)
def test_every_sampler_on_random_workflows(sampler: Sampler, workflow: Programmed, seed: int, count: int) -> None:
    options: dict[str, Any] = {"tasks": Hashed(), "rewards": ROLES, "seed": seed, "orders": 1}
    size = next(field.name for field in dataclasses.fields(sampler))  # type: ignore[arg-type]
    sampler = dataclasses.replace(sampler, **{size: count})  # type: ignore[type-var]
    check_sampler(sampler, workflow, TASK, talkers(seed), may_fail=True, **options)


def test_an_answer_that_was_proposed_before_is_no_broken_promise() -> None:
    class Confirms(Workflow):
        async def run(self, task: Task, team: Any) -> str:
            draft = await team["solver"].act(task.prompt)
            team.propose(draft.text)
            await team["critic"].act(f"{task.prompt} {draft.text}")
            return str(draft.text)

    sample = check_sampler(JointTree(2), Confirms(), TASK, talkers(), tasks=Hashed())
    assert {turn.rewards["team"] for turn in sample.turns if turn.agent == "critic"} == {0.0}


def test_it_gives_the_sample_and_states_the_budget() -> None:
    sample = check_sampler(GreedyTree(3), STEPS, TASK, talkers(), tasks=Hashed(), asked=9)
    assert len(sample.turns) == 9
    with pytest.raises(AssertionError, match="requested 9 actions, not 8"):
        check_sampler(GreedyTree(3), STEPS, TASK, talkers(), tasks=Hashed(), asked=8)


# broken promises


def tampered(base: Sampler, how: Callable[[Sample], None]) -> Sampler:
    """A sampler whose sample is changed before it is returned."""

    class Tampered(Sampler):
        branches = base.branches

        async def sample(self, context: SamplingContext) -> Sample:
            sample = await base.sample(context)
            how(sample)
            return sample

    return Tampered()


def one_reward_for_all(sample: Sample) -> None:
    """As the released AT-GRPO code: the second agent's candidates have one reward."""
    second = [turn for turn in sample.turns if turn.parent is not None]
    for turn in second:
        turn.rewards = second[0].rewards


def a_row_twice(sample: Sample) -> None:
    row = sample.episodes[0].off_path_turns[0]
    sample.episodes[0].off_path_turns.append(dataclasses.replace(row, index=99, node="copy"))


def one_key(sample: Sample) -> None:
    sample.episodes[0].off_path_turns[0].index = sample.episodes[0].turns[0].index


def losers_dropped(sample: Sample) -> None:
    sample.episodes[0].off_path_turns.clear()


def tokens_invented(sample: Sample) -> None:
    sample.add_tokens("rollout", 1)


def another_uid(sample: Sample) -> None:
    sample.turns[0].uid = "q2"


def unknown_parent(sample: Sample) -> None:
    sample.turns[-1].parent = "missing"


def the_wrong_parent(sample: Sample) -> None:
    loser = next(turn for turn in sample.episodes[0].off_path_turns if turn.parent is None)
    for turn in sample.turns:
        if turn.node is not None and turn.node.startswith("1-"):
            turn.parent = loser.node


def the_state_stands_still(sample: Sample) -> None:
    sample.turns[-1].parent = None


def another_observation(sample: Sample) -> None:
    row = sample.turns[1]
    row.act = dataclasses.replace(row.act, observation=({"role": "user", "content": "something else"},))


def two_parents(sample: Sample) -> None:
    sample.turns[1].node = sample.turns[-1].node


def two_candidates_at_one_node(sample: Sample) -> None:
    sample.turns[-1].node = sample.turns[-2].node


def invalid_invented(sample: Sample) -> None:
    sample.episodes[0].turns[-1].invalid = "no"


def a_gap_in_the_path(sample: Sample) -> None:
    episode = sample.episodes[0]
    episode.off_path_turns.append(episode.turns.pop(1))
    episode.off_path_turns.sort(key=lambda turn: turn.index)


def another_score(sample: Sample) -> None:
    sample.episodes[0].score += 1.0


def another_journal(sample: Sample) -> None:
    sample.episodes[0].journal = sample.episodes[0].journal.prefix(1)


def partial_value(sample: Sample) -> None:
    sample.episodes[0].finished = False


def no_node(sample: Sample) -> None:
    sample.turns[0].node = None


def another_turn(sample: Sample) -> None:
    sample.turns[0].act = dataclasses.replace(sample.turns[0].act, turn=7)


def another_policy(sample: Sample) -> None:
    sample.turns[0].policy = "p"


def an_episode_twice(sample: Sample) -> None:
    sample.episodes.append(dataclasses.replace(sample.episodes[0]))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (one_reward_for_all, r"has rewards \{'team': .*\}; the state that it leads to has \{'team'"),
        (a_row_twice, "one action is in 2 rows"),
        (one_key, r"2 rows have the key \(session 0, index"),
        (losers_dropped, "sampled tokens are in no row, and extra_tokens has 0"),
        (tokens_invented, "0 sampled tokens are in no row, and extra_tokens has 1"),
        (another_uid, "has uid 'q2', the task's is 'q1'"),
        (unknown_parent, r"row 5 of session 0 \(solver:1, node 2-1\) has parent missing, which is not an earlier node"),
        (the_wrong_parent, r"has another observation than its parent's state: recorded .*, now "),
        (the_state_stands_still, "is not an act of its parent, node None, at act solver:0"),
        (another_observation, "row 1 .* has another observation"),
        (two_parents, "the rows of node 2-1 have several parents"),
        (two_candidates_at_one_node, "node 2-0 has two actions for act solver:1"),
        (invalid_invented, "has invalid='no'; its workflow sets None"),
        (a_gap_in_the_path, "in an episode, but its parent is"),
        (another_score, "has score .*; replayed it is"),
        (another_journal, "has a journal with other actions than its turns"),
        (partial_value, "has finished=False"),
        (no_node, "node None.* has parent None, and the sampler has branches = True"),
        (another_turn, "row 0 .* says turn 7, its act is turn 0"),
        (another_policy, "row 0 .* has policy 'p', its agent's is 'solver'"),
        (an_episode_twice, "two episodes are the path to one node"),
    ],
)
def test_a_greedy_tree_that_breaks_a_promise(how: Callable[[Sample], None], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_sampler(tampered(GreedyTree(2), how), STEPS, TASK, talkers(), tasks=Hashed())


def test_rows_that_depend_on_arrival() -> None:
    runs = itertools.count()

    def numbered_as_it_happens(sample: Sample) -> None:
        if next(runs):
            one, other = sample.episodes[0].off_path_turns[:2]
            one.index, other.index = other.index, one.index

    with pytest.raises(AssertionError, match="with actions arriving in another order, the sample differs"):
        check_sampler(tampered(GreedyTree(3), numbered_as_it_happens), STEPS, TASK, talkers(2), tasks=Hashed())


def a_lost_turn(sample: Sample) -> None:
    sample.add_tokens("lost", len(sample.episodes[1].turns.pop().action.response_ids))


def turns_of_others(sample: Sample) -> None:
    sample.episodes[0].turns, sample.episodes[1].turns = sample.episodes[1].turns, sample.episodes[0].turns


def sessions_mixed_up(sample: Sample) -> None:
    one, other = sample.episodes[0].turns[1], sample.episodes[1].turns[1]
    one.session, other.session = 1, 0


def in_a_tree(sample: Sample) -> None:
    sample.turns[0].node = "0"


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (one_reward_for_all, None),  # no row has a parent: nothing is broken
        (a_lost_turn, "session 1 has no row for act solver:1"),
        (turns_of_others, "the episode of session 0 has turns of other sessions"),
        (sessions_mixed_up, "session 0 are not a run of the workflow: .* is shown another observation"),
        (another_turn, "row 0 .* says turn 7, its act is turn 0"),
        (in_a_tree, "node 0.* has parent None, and the sampler has branches = False"),
        (another_score, "the episode of session 0 has score"),
        (another_journal, "has a journal with other actions than its turns"),
        (partial_value, "the episode of session 0 is not finished"),
    ],
)
def test_independent_episodes_that_break_a_promise(how: Callable[[Sample], None], message: str | None) -> None:
    sampler = tampered(Independent(2), how)
    if message is None:
        check_sampler(sampler, STEPS, TASK, talkers(), tasks=Hashed())
        return
    with pytest.raises(AssertionError, match=message):
        check_sampler(sampler, STEPS, TASK, talkers(), tasks=Hashed())


def a_joint_action_left_out(sample: Sample) -> None:
    row = sample.turns[0]
    row.rewards = {"team": row.rewards["team"] / 2}


def a_path_with_an_action_of_another(sample: Sample) -> None:
    first, last = sample.episodes[0], sample.episodes[-1]
    first.turns = [first.turns[0], last.turns[1]]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (a_joint_action_left_out, "row 0 .* has rewards"),
        (a_path_with_an_action_of_another, "the episode to node 1 has answer .*; replayed it is"),
    ],
)
def test_a_crossed_tree_that_breaks_a_promise(how: Callable[[Sample], None], message: str) -> None:
    program = Programmed((Joint(("solver", "critic")),))
    sampler = tampered(JointTree(2, joint="cross"), how)
    with pytest.raises(AssertionError, match=message):
        check_sampler(sampler, program, TASK, talkers(7), tasks=Hashed())


class Careless(Sampler):
    """Four independent episodes with one thing wrong, by name."""

    wrong: str = ""

    async def sample(self, context: SamplingContext) -> Sample:
        sample = Sample()
        work = [asyncio.create_task(self._session(context, g)) for g in range(4)]
        try:
            for done in asyncio.as_completed(work) if self.wrong == "arrival" else work:
                episode = await done
                if hasattr(episode, "reason"):
                    sample.failures += [] if self.wrong == "hides" else [episode]
                else:
                    sample.episodes.append(episode)
        except asyncio.CancelledError:
            if self.wrong != "goes on":
                raise
        finally:
            for task in work:
                task.cancel()
        return sample

    async def _session(self, context: SamplingContext, g: int) -> Any:
        if self.wrong == "leaves a run":
            await context.start(g).run_until_blocked()
        if self.wrong == "lets fall":
            return await self._play(context, g)
        return await attempt(context, g, self._play(context, g))

    async def _play(self, context: SamplingContext, g: int) -> Any:
        async def request(act: Act) -> Action:
            if self.wrong == "one seed":
                await ask(context, act, g)
            return await (context.act(act, g) if self.wrong == "lets fall" else ask(context, act, g))

        async with context.start(g) as run:
            await drive(run, request)
            return await context.finish(run, g)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("arrival", "with actions arriving in another order, the sample differs"),
        ("leaves a run", "tasks are left running when it has returned: Run._main"),
        ("one seed", "act solver:0 of session 0 is requested 2 times as candidate 0: these requests have the same"),
        ("hides", "a request failed, but the sample has no such failure"),
        ("goes on", "does not end when it is cancelled"),
    ],
)
def test_a_sampler_that_is_careless(wrong: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_sampler(Careless(wrong=wrong), STEPS, TASK, talkers(), tasks=Hashed(), orders=5)


def test_an_uncaught_error_fails() -> None:
    check_sampler(Careless(), STEPS, TASK, talkers(), tasks=Hashed())
    message = "a request failed, and `sample` raised SwitchedOff: use `ask` for policy requests, in an `attempt`"
    with pytest.raises(AssertionError, match=message):
        check_sampler(Careless(wrong="lets fall"), STEPS, TASK, talkers(), tasks=Hashed())
