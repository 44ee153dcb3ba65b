"""The loaders: rows in the columns of each set, made here, and HumanEval's own; rows of another form."""

import asyncio
import base64
import json
import os
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest
from marl_verl_code.code_tests import CodeWithTests
from marl_verl_code.joint_code import JointCode
from marl_verl_datasets import PublicTasks

from marl_verl import MarlError, Task

TEST = '''
METADATA = {"author": "unknown"}
import math

def check(candidate):
    """Docs."""
    numbers = [1, 2, 3]
    assert candidate(numbers) == 3
    assert candidate([]) is None, "empty"
    for n in range(3):
        assert candidate([n]) == n
    assert math.isclose(candidate([0.5]), 0.5)

if __name__ == "__main__":
    check(largest)
'''
HUMAN = {
    "task_id": "HumanEval/999",
    "prompt": 'from typing import List\n\ndef largest(numbers: List[int]):\n    """The largest, None of none."""\n',
    "entry_point": "largest",
    "test": TEST,
}
MORE = [{"input": "3\n", "output": "6\n", "testtype": "stdin"}]
CALL = [{"input": "3\n[1, 2]", "output": "[3, 3]", "testtype": "functional"}]


def packed(tests: Any) -> str:
    """As LiveCodeBench packs its private tests."""
    return base64.b64encode(zlib.compress(pickle.dumps(tests))).decode()


LIVE = {
    "question_id": "1873_A",
    "question_content": "Double a number.",
    "public_test_cases": json.dumps([{"input": "2\n", "output": "4\n", "testtype": "stdin"}]),
    "private_test_cases": packed(json.dumps(MORE)),
}
FUNCTIONAL = {
    **LIVE,
    "starter_code": "class Solution:\n    def repeat(self, n, like):",
    **{"metadata": json.dumps({"func_name": "repeat"}), "public_test_cases": json.dumps(CALL)},
    "private_test_cases": json.dumps(CALL),
}
APPS = {
    "problem_id": 7,
    "question": "Double a number.",
    "input_output": json.dumps({"inputs": ["1\n", "2\n", ["3", ""]], "outputs": ["2\n", "4\n", ["6"]]}),
    "solutions": json.dumps(["print(2 * int(input()))"]),
}
WRAPPED = json.dumps({"fn_name": "double", "inputs": [[1], [2], [3]], "outputs": [[2], 4, [6]]})
CONTESTS = {
    "name": "1_A. Double",
    "description": "Double a number.",
    "public_tests": {"input": ["1\n"], "output": ["2\n"]},
    "private_tests": {"input": ["2\n"], "output": ["4\n"]},
    "generated_tests": {"input": ["3\n"], "output": ["6\n"]},
    "solutions": {"language": [2, 3], "solution": ["int main", "print(2 * int(input()))"]},
}
MBPP = {
    **{"task_id": 2, "text": "Write a function to add.", "code": "def add(a, b):\n    return a + b"},
    **{"test_list": ["assert set([add(1, 2)]) == set([3])", "assert add(2, 3) == 5"], "test_setup_code": ""},
    "challenge_test_list": [],
}
SANITIZED = {**MBPP, "test_imports": ["import math"], "test_list": ["assert add(1, 2) == math.ceil(2.5)"] * 2}
METHOD = "class Solution:\n    def repeat(self, n, like): return {} * len(like)"
DOUBLE = "print(2 * int(input()))"


def read(tmp_path: Path, name: str, *rows: Any, tasks: type[PublicTasks] = CodeWithTests) -> list[Task]:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return tasks(train=name).read(path, "train")


def score(task: Task, program: str) -> float:
    return asyncio.run(CodeWithTests(seconds=20).score(task, program))


@pytest.mark.parametrize(
    ("name", "row", "right", "wrong", "counts"),
    [
        ("livecodebench", {**LIVE, "private_test_cases": MORE}, DOUBLE, "print(4)", (1, 1)),
        ("livecodebench", LIVE, "print(f'{2 * int(input())}.00')", "print('4.01')", (1, 1)),
        ("livecodebench", FUNCTIONAL, METHOD.format("[float(n)]"), METHOD.format("[n + 0.1]"), (1, 1)),
        (
            "livecodebench",
            FUNCTIONAL,
            "class Solution:\n    def repeat(self, n: int, like: str) -> List[int]: return [n] * len(like)",
            "def repeat(n, like): return [n] * len(like)",
            (1, 1),
        ),
        (
            "apps",
            {**APPS, "input_output": WRAPPED},
            "def double(x: int) -> Optional[int]: return pow(2 * x, 1)",
            "def double(x): return 2",
            (2, 1),
        ),
        ("codecontests", CONTESTS, DOUBLE, "print({'1': 2, '2': 4}[input()])", (1, 2)),
        ("mbpp", MBPP, MBPP["code"], "def add(a, b): return 3", (1, 1)),
        ("mbpp", SANITIZED, MBPP["code"], "def add(a, b): return 4", (1, 1)),
        (
            "humaneval",
            HUMAN,
            "def largest(numbers: List[int]): return max(numbers, default=None)",
            "def largest(numbers): return max(numbers)",
            (0, 4),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isalpha() else "",
)
def test_a_row_is_a_task(name: str, row: Any, right: str, wrong: str, counts: tuple[int, int], tmp_path: Path) -> None:
    (task,) = read(tmp_path, name, row)
    assert (len(task.data["public"]), len(task.data["private"])) == counts
    assert (score(task, right), score(task, wrong)) == (1.0, 0.0)
    assert json.loads(json.dumps(task.data)) == task.data
    if name in ("apps", "codecontests", "mbpp"):
        assert task.data["solution"]


def test_a_helper_of_the_prompt_can_be_used_by_tests_and_answer(tmp_path: Path) -> None:
    prompt = "import math\ndef half(x):\n    return x / 2\n\ndef quarter(x):\n    '''A quarter.'''\n"
    row = {**HUMAN, "prompt": prompt, "entry_point": "quarter"}
    row["test"] = "def check(candidate):\n    assert candidate(math.pi) == half(half(math.pi))"
    (task,) = read(tmp_path, "humaneval", row)
    assert score(task, "def quarter(x): return half(half(x))") == 1.0
    (task,) = read(tmp_path, "humaneval", row, tasks=JointCode)
    answer = {"helper": "def aux(x): return half(x)", "main": "def quarter(x):\n    y = aux(x)\n    return half(y)"}
    assert JointCode().score(task, answer) == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("humaneval", {**HUMAN, "test": "def check(:"}, "row 1: SyntaxError"),
        ("apps", {**APPS, "input_output": {"inputs": ["1"] * 4, "outputs": ["2"] * 3}}, "left out: 1 with different"),
        ("codecontests", {**CONTESTS, "private_tests": {"input": ["1"], "output": []}}, "left out: 1 with different"),
        ("livecodebench", {**LIVE, "private_test_cases": packed(os.system)}, "they name posix.system, and should be"),
    ],
)
def test_a_row_of_another_form_is_an_error(name: str, row: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(MarlError, match=f"rows.jsonl.*{message}"):
        read(tmp_path, name, row)
