"""`check_sampler`: every sampler passes on random workflows, and each broken promise is named."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marl_verl_at_grpo.greedy_tree import GreedyTree
from marl_verl_baselines import BestOf, GreedyBaseline
from marl_verl_magrpo.joint_tree import JointTree
from marl_verl_mars2.tree_search import TreeSearch
from marl_verl_testing import check_sampler
from marl_verl_testing.workflows import TASK, Hashed, Mark, Programmed, Solo, own_words, talkers, workflows

from marl_verl.algo.sampling import Independent, Sample, Sampler, SamplingContext

STEPS = Programmed((Solo("solver"), Mark("propose"), Solo("critic"), Mark("propose"), Solo("solver")))


SAMPLERS: list[Sampler] = [
    *(Independent(), BestOf(), GreedyBaseline(3)),
    *(GreedyTree(), GreedyTree(partial_value="rollout"), GreedyTree(partial_value="zero")),
    *(JointTree(max_nodes=7, stop_above=0.6), JointTree(partial_value="zero"), JointTree(joint="cross", max_nodes=30)),
    TreeSearch(strategy="stack", prior="beta", arms=["solver", "critic"], partial_value="zero"),
    *(TreeSearch(), TreeSearch(guide="public", partial_value="zero")),
]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
@given(workflow=workflows(failing=True), seed=st.integers(0, 99), count=st.integers(1, 3))
@settings(max_examples=6)
def test_every_sampler_on_random_workflows(sampler: Sampler, workflow: Programmed, seed: int, count: int) -> None:
    options: dict[str, Any] = {"tasks": Hashed(), "rewards": {"solver": own_words}, "seed": seed, "orders": 1}
    size = next(field.name for field in dataclasses.fields(sampler))  # type: ignore[arg-type]
    sampler = dataclasses.replace(sampler, **{size: count})  # type: ignore[type-var]
    check_sampler(sampler, workflow, TASK, talkers(seed), may_fail=True, **options)


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


def the_wrong_parent(sample: Sample) -> None:
    loser = next(turn for turn in sample.episodes[0].off_path_turns if turn.parent is None)
    for turn in sample.turns:
        if turn.node is not None and turn.node.startswith("1-"):
            turn.parent = loser.node


def another_score(sample: Sample) -> None:
    sample.episodes[0].score += 1.0


def test_rows_that_depend_on_arrival() -> None:
    runs = itertools.count()

    def numbered_as_it_happens(sample: Sample) -> None:
        if next(runs):
            one, other = sample.episodes[0].off_path_turns[:2]
            one.index, other.index = other.index, one.index

    with pytest.raises(AssertionError, match="with actions arriving in another order, the sample differs"):
        check_sampler(tampered(GreedyTree(3), numbered_as_it_happens), STEPS, TASK, talkers(2), tasks=Hashed())


def a_lost_turn(sample: Sample) -> None:
    sample.add_tokens("lost", sample.episodes[1].turns.pop().length)


@pytest.mark.parametrize(
    ("sampler", "how", "message"),
    [
        (GreedyTree(2), one_reward_for_all, r"has rewards \{'team': .*\}; the state that it leads to has \{'team'"),
        (
            GreedyTree(2),
            lambda sample: sample.episodes[0].off_path_turns.clear(),
            "sampled tokens are in no row, and extra_tokens has 0",
        ),
        (GreedyTree(2), the_wrong_parent, r"has another observation than its parent's state: recorded .*, now "),
        (GreedyTree(2), another_score, "has score .*; replayed it is"),
        (Independent(2), a_lost_turn, "session 1 has no row for act solver:1"),
    ],
)
def test_a_broken_promise_is_named(sampler: Sampler, how: Callable[[Sample], None], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_sampler(tampered(sampler, how), STEPS, TASK, talkers(), tasks=Hashed())
