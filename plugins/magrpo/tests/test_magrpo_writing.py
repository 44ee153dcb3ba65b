"""MAGRPO's joint tree on joint writing."""

from __future__ import annotations

from typing import Any

from marl_verl_magrpo.joint_tree import JointTree
from marl_verl_testing import ScriptedPolicy, check_sampler
from marl_verl_writing.two_writers import JointWriting, TwoWriters

from marl_verl import Task

POST = Task("post", "My housemate turns the heating down.", {})


def words(count: int) -> str:
    return " ".join(f"w{number}x" for number in range(count))


def test_the_joint_tree_works_on_it() -> None:
    def say(act: Any, session: int, candidate: Any) -> str:
        return words(10 if act.agent == "one" else 20 + int(candidate))

    sample = check_sampler(
        JointTree(4), TwoWriters(), POST, ScriptedPolicy({"one": say, "two": say}), tasks=JointWriting()
    )
    assert len(sample.turns) == 8
