"""Small programs, for tiny models."""

from __future__ import annotations

import asyncio

import pytest
from marl_verl_code.coder_tester import written
from marl_verl_code.refine_code import program_in
from marl_verl_code.small_programs import SIGNS, SmallPrograms, TinyCoderTester, fenced, program
from marl_verl_testing import ScriptedPolicy, check_task, check_workflow, shown

from marl_verl import MarlError, Task

SMALL = SmallPrograms(seconds=20)


def answer(task: Task) -> str:
    return str(task.data["solution"])


def test_tasks_are_reproducible_and_splits_disjoint() -> None:
    train, test = SMALL.generate("train", 100, 1), SMALL.generate("test", 20, 1)
    assert train == SMALL.generate("train", 100, 1)
    assert not {task.id for task in train} & {task.id for task in test}
    with pytest.raises(MarlError, match=r"Set marl\.task\.test_size to at most"):
        SMALL.generate("test", 100, 1)


def test_demonstrations_are_of_training_tasks_and_good_ones_pass() -> None:
    held = {task.prompt for task in SMALL.generate("test", 20, 0)}
    for good in (1.0, 0.0):
        for seen, said in SMALL.demonstrations("coder", 40, 0, good):
            word, number = seen.split()[:2]
            assert f"{word} {number}" not in held
            assert (program_in(said) == program(word, number)) == bool(good)
        for seen, said in SMALL.demonstrations("tester", 40, 0, good):
            word, number = seen.split()[:2]
            ((given, output),) = [(each["input"], each["output"]) for each in written(said)]
            assert (eval(f"{given} {SIGNS[word]} {number}") == int(output)) == bool(good)
    with pytest.raises(MarlError, match="unknown agent of small-programs 'codr': did you mean 'coder'"):
        SMALL.demonstrations("codr", 1, 0, 1.0)


def test_the_tiny_workflow() -> None:
    (task,) = SMALL.generate("train", 1, 3)
    tests = fenced("json", '[{"input": "0", "output": "no number"}]')
    policy = ScriptedPolicy({"coder": fenced("python", answer(task)), "tester": tests})
    run = check_workflow(TinyCoderTester(turns=2), task, policy)
    assert [shown(act) for act, _ in run.turns] == [task.prompt] * 2 + [f"{task.prompt} failed 0"] * 2
    assert asyncio.run(SMALL.score(task, run.answer)) == 1.0


def test_the_kit_checks_the_tiny_tasks() -> None:
    check_task(SMALL, lambda task: [answer(task), "print(1)", "1 / 0", ""], count=3)
