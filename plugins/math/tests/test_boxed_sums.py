"""Boxed sums, for tiny models."""

from __future__ import annotations

import asyncio

import pytest
from marl_verl_math.boxed_sums import BoxedSums, TinySolverVerifier
from marl_verl_testing import ScriptedPolicy, check_task, check_workflow, shown

from marl_verl import MarlError

SUMS = BoxedSums(largest=9)


def test_tasks_are_reproducible_and_splits_disjoint() -> None:
    train, test = SUMS.generate("train", 60, 1), SUMS.generate("test", 5, 1)
    assert train == SUMS.generate("train", 60, 1)
    assert not {task.id for task in train} & {task.id for task in test}
    with pytest.raises(MarlError, match=r"Set marl\.task\.test_size to at most"):
        SUMS.generate("test", 100, 1)


def test_every_word_is_in_the_vocabulary() -> None:
    words = set(SUMS.vocabulary())
    for agent in ("solver", "verifier"):
        for seen, said in SUMS.demonstrations(agent, 300, 0, 0.5):
            assert set(f"{seen} {said}".split()) <= words
    with pytest.raises(MarlError, match="unknown agent of boxed-sums 'solvr': did you mean 'solver'"):
        SUMS.demonstrations("solvr", 1, 0, 1.0)


def test_good_demonstrations_are_right() -> None:
    for seen, said in SUMS.demonstrations("solver", 50, 0, 1.0):
        one, other = map(int, seen.split()[1:3])
        assert said == f"\\boxed{{{one + other}}}"
    for seen, said in SUMS.demonstrations("verifier", 50, 0, 1.0):
        _, one, other, _, solution = seen.split()
        right = solution == f"\\boxed{{{int(one) + int(other)}}}"
        assert said == f"<verify>{'approve' if right else 'reject'}</verify>"


def test_the_tiny_workflow() -> None:
    (task,) = SUMS.generate("train", 1, 3)
    right = f"\\boxed{{{task.data['answer']}}}"
    policy = ScriptedPolicy({"solver": ["sum 3", right], "verifier": "<verify>reject</verify>"})
    run = check_workflow(TinySolverVerifier(), task, policy)
    assert [shown(act) for act, _ in run.turns] == [
        task.prompt,
        f"{task.prompt} solution none",
        f"{task.prompt} rejected none",
    ]
    assert asyncio.run(SUMS.score(task, run.answer)) == 1.0


def test_the_kit_checks_the_tiny_tasks() -> None:
    check_task(
        BoxedSums(largest=9), lambda task: [f"\\boxed{{{task.data['answer']}}}", "\\boxed{-1}", "7", ""], count=4
    )
