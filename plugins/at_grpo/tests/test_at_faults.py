"""AT-GRPO's baselines are other methods, its filter of groups, and its tree on mathematics.

The released code has faults by its own paper: groups that mix problems (`test_algorithms.py` compares with the
reference), one reward for all candidates of the second agent and a state that stays at the first turn's winner
(`test_greedy_tree.py`), and a "GRPO baseline" that is AT-GRPO (here).
"""

import asyncio
import zlib
from typing import Any

import numpy as np
import pytest
from marl_verl_at_grpo.greedy_tree import GreedyTree
from marl_verl_games.plan_path import WORDS
from marl_verl_games.tiny_plan_path import EXECUTOR, PLANNER, PlannerExecutor, TinyPlanPath, at_plan_path
from marl_verl_math.tasks import MathTasks
from marl_verl_math.tool_user import REASONER, TOOL_USER, ToolUserReasoner, own_answer
from marl_verl_testing import ScriptedContext, ScriptedPolicy, check_sampler, shown
from marl_verl_testing.algorithm import row_of as row
from marl_verl_testing.rows import algorithm

from marl_verl import Task
from marl_verl.algo.advantage import RowTable
from marl_verl.algo.rewards import Mix, RewardMix
from marl_verl.algo.sampling import Independent, Sample, Sampler
from marl_verl.episode import Act

K = 8
TASKS = TinyPlanPath()
REWARDS = {PLANNER: at_plan_path, EXECUTOR: at_plan_path}
OPTIONS = {"alpha": 1.0}


def words(act: Act, session: int, candidate: Any) -> str:
    """One or two moves, by chance."""
    number = zlib.crc32(f"{act.agent} {act.slot} {session} {candidate} {shown(act)}".encode())
    first, second = (list(WORDS)[number // 4**n % 4] for n in range(2))
    return f"{first} {second}" if act.agent == PLANNER else first


def sampled(task: Task, sampler: Sampler, mix: RewardMix | None = None) -> Sample:
    policy = ScriptedPolicy({PLANNER: words, EXECUTOR: words})
    context = ScriptedContext(PlannerExecutor(), task, policy, TASKS, rewards=REWARDS, mix=mix or Mix())
    return asyncio.run(sampler.sample(context))


@pytest.fixture(scope="module")
def problems() -> list[Task]:
    return TASKS.generate("train", 4, 3)


def table(samples: list[Sample]) -> RowTable:
    return RowTable.from_rows([row(turn) for sample in samples for turn in sample.turns])


def test_the_grpo_baseline_is_not_at_grpo(problems: list[Task]) -> None:
    method = algorithm("at-grpo", **OPTIONS)
    grpo = algorithm("grpo", **{"rewards": "marl_verl_at_grpo.algorithm:AlphaMix", **OPTIONS})
    sessions = algorithm("at-grpo-sessions", **OPTIONS)
    assert [each.sampler for each in (method, grpo, sessions)] == ["greedy-tree", "independent", "independent"]
    rows = table([sampled(task, Independent(K)) for task in problems])
    blind, split = grpo.compute(rows), sessions.compute(rows)
    np.testing.assert_array_equal(blind.reward, split.reward)  # one reward, other groups
    assert len(set(blind.group)) == len(problems)
    assert len(set(split.group)) > 6 * len(problems)
    assert not np.allclose(blind.advantage, split.advantage)


# AT-GRPO's filter of groups


MEANS = {"a": [(0.0, 1.0), (2.0, 4.0), (9.0, 9.0), (5.0, 6.0)], "b": [(50.0, 60.0), (70.0, 71.0)]}
ROWS = [
    {
        "uid": f"q{task}",
        "session": k,
        "index": number,
        "turn": 0,
        "agent": agent,
        "length": 1,
        "rewards": {"team": reward},
    }
    for number, (agent, groups) in enumerate(MEANS.items())
    for task, rewards in enumerate(groups)
    for k, reward in enumerate(rewards)
]


def filtered(**options: object) -> list[str]:
    """The groups with an advantage of 0 in all rows that have another one without the filter."""
    with_filter, without = (
        algorithm("at-grpo-sessions", **each).compute(RowTable.from_rows(ROWS)).advantage for each in (options, {})
    )
    assert np.all((with_filter == without) | (with_filter == 0))
    return sorted(
        {f"{row['agent']}-{row['uid']}" for row, a, b in zip(ROWS, with_filter, without, strict=True) if a != b}
    )


def test_the_groups_of_an_agent_with_the_lowest_mean_are_left_out() -> None:
    assert filtered(filter_ratio=0.5) == ["a-q0", "a-q1", "b-q0"]
    assert filtered() == []


# AT-GRPO's tree on mathematics: each candidate has the reward of its own answer


TASK = Task("sum", "What is 6 * 7?", {"answer": "42"})


def printing(answer: str) -> str:
    return f"```python\nprint({answer})\n```"


def test_each_candidate_is_rewarded_for_its_own_answer() -> None:
    def program(act: Act, session: int, candidate: Any) -> str:
        return {"0": printing("42"), "1": printing("40")}.get(str(candidate)[-1], "none")

    def think(act: Act, session: int, candidate: Any) -> str:
        return rf"{candidate}: \boxed{{4{str(candidate)[-1]}}}"

    policy = ScriptedPolicy({TOOL_USER: program, REASONER: think})
    rewards = {TOOL_USER: own_answer, REASONER: own_answer}
    found = check_sampler(GreedyTree(3), ToolUserReasoner(turns=1), TASK, policy, tasks=MathTasks(), rewards=rewards)
    assert [(turn.rewards["team"], turn.rewards["role"]) for turn in found.turns] == [
        *[(1.0, 1.0), (0.0, 0.0), (0.0, -0.1)],
        *[(0.0, 0.0), (0.0, 0.0), (1.0, 1.0)],
    ]
