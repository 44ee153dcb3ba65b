"""A tree of programs: code tasks under `tree-search`."""

from __future__ import annotations

import asyncio

from marl_verl_code.code_tests import CodeWithTests
from marl_verl_code.refine_code import RefineCode
from marl_verl_mars2.tree_search import TreeSearch
from marl_verl_testing import ScriptedContext, ScriptedPolicy

from marl_verl import Task
from marl_verl.algo.sampling import Candidate
from marl_verl.episode import Act

DOUBLE = Task(
    "double",
    "Read a number and print twice that number.",
    {
        "public": [{"input": "2\n", "output": "4\n"}, {"input": "5\n", "output": "10\n"}],
        "private": [{"input": "-3\n", "output": "-6\n"}],
    },
)
RIGHT = "print(2 * int(input()))"
SQUARE = "print(int(input()) ** 2)"  # passes the first public test only
TASKS = CodeWithTests(seconds=20)


def fenced(code: str) -> str:
    return f"I think this does it.\n```python\n{code}\n```\nIt reads and prints."


def test_a_tree_of_programs_is_searched_and_scored() -> None:
    def fixes(act: Act, session: int, candidate: Candidate) -> str:
        return fenced(RIGHT if "An attempt at this problem" in act.observation[0]["content"] else SQUARE)

    policy = ScriptedPolicy({"a": fenced(SQUARE), "b": fixes})
    context = ScriptedContext(RefineCode(rounds=2), DOUBLE, policy, tasks=TASKS)
    found = asyncio.run(TreeSearch(8, arms=["a", "b"]).sample(context))
    assert len(found.turns) == 8
    refined = [turn for turn in found.turns if turn.agent == "b" and turn.parent is not None]
    assert refined
    assert {turn.rewards["team"] for turn in refined} == {1.0}
    assert {turn.rewards["team"] for turn in found.turns if turn not in refined} == {0.0}


def test_a_timeout_is_seen_by_all_refinements() -> None:
    context = ScriptedContext(
        RefineCode(rounds=1, seconds=1),
        DOUBLE,
        ScriptedPolicy({"a": fenced("while True: pass")}),
        tasks=CodeWithTests(seconds=1),
    )
    found = asyncio.run(TreeSearch(2).sample(context))
    seen = [turn.observation[0]["content"] for turn in found.turns if turn.parent is not None]
    assert all("takes too long and is stopped" in text for text in seen)
    assert len(found.turns) == 2
