"""Small programs, for tiny models."""

import asyncio

from marl_verl_code.coder_tester import written
from marl_verl_code.small_programs import SIGNS, SmallPrograms, TinyCoderTester, fenced, program
from marl_verl_sandbox import program_in
from marl_verl_testing import ScriptedPolicy, check_workflow, shown

from marl_verl import Task

SMALL = SmallPrograms(seconds=20)


def answer(task: Task) -> str:
    return str(task.data["solution"])


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


def test_the_tiny_workflow() -> None:
    (task,) = SMALL.generate("train", 1, 3)
    tests = fenced("json", '[{"input": "0", "output": "no number"}]')
    policy = ScriptedPolicy({"coder": fenced("python", answer(task)), "tester": tests})
    run = check_workflow(TinyCoderTester(turns=2), task, policy)
    assert [shown(act) for act, _ in run.turns] == [task.prompt] * 2 + [f"{task.prompt} failed 0"] * 2
    assert asyncio.run(SMALL.score(task, run.answer)) == 1.0
