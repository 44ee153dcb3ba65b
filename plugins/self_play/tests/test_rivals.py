"""Agents with interests of their own: proposer and solver, debaters before a judge."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from marl_verl_inspect.explained import ExplainedRows
from marl_verl_self_play import proposer_solver as arithmetic
from marl_verl_self_play.majority_debate import MajorityDebate, MajorityDebateGame
from marl_verl_self_play.proposer_solver import (
    ProposedArithmetic,
    ProposerSolver,
    learnability,
    proposer_learnability,
    proposer_uncertainty,
    solver_correct,
)
from marl_verl_self_play.role_conditioned import BASELINE, RoleConditioned
from marl_verl_testing import ScriptedContext, ScriptedPolicy, check_workflow, shown
from marl_verl_testing.rows import row

from marl_verl import Episode, MarlError, Task, TaskSet, Workflow
from marl_verl.algo.advantage import RowTable
from marl_verl.algo.algorithms import Algorithm
from marl_verl.algo.algorithms.algorithm import step_document
from marl_verl.algo.sampling import Independent
from marl_verl.trainer.data import AdvantageMemory

BEGINS = Task("p", "write", {"first": "3", "terms": 3, "largest": 8})
SHOWN = Task("d", "which", {"letters": ["A", "B", "A", "B", "A"], "claim": "A"})
RIVALS = {"proposer": "proposer", "solver": "solver"}


def played(workflow: Workflow, task: Task, tasks: TaskSet, policy: ScriptedPolicy, **given: Any) -> Episode:
    (episode,) = asyncio.run(Independent(1).sample(ScriptedContext(workflow, task, policy, tasks, **given))).episodes
    return episode


def test_problems_are_parsed_and_computed() -> None:
    assert arithmetic.parsed(" 3+4 - 2") == ["3", "+", "4", "-", "2"]
    assert arithmetic.result(["3", "+", "4", "-", "9"]) == -2
    for text in ("3", "3 +", "3 + 14", "3 * 4", "3 + 4 = 7", ""):
        assert arithmetic.parsed(text) is None, text
    assert [arithmetic.number(text) for text in (" -2", "+7", "7.0", "", "7 8")] == [-2, 7, None, None, None]
    rng = random.Random(0)
    for test in (False, True):
        found = [arithmetic.drawn(rng, 3, 4, test) for _ in range(30)]
        assert {(len(parts), arithmetic.reserved(parts)) for parts in found} == {(5, test)}
        assert {digit for parts in found for digit in parts[::2]} == set("01234")
    with pytest.raises(MarlError, match="no test problem of 2 digits up to 1"):
        arithmetic.drawn(rng, 2, 1, True)


@pytest.mark.parametrize(("solved", "learnable"), [(0.0, 0.0), (0.25, 0.75), (0.5, 0.5), (1.0, 0.0), (None, 0.0)])
def test_the_reward_of_a_proposer(solved: float | None, learnable: float) -> None:
    assert learnability(solved) == learnable


def test_one_of_four_attempts_is_right() -> None:
    attempts = {"attempt0": "7", "attempt1": "8", "attempt2": "-7", "attempt3": "seven"}
    policy = ScriptedPolicy({"proposer": "3+4", "solver": lambda act: attempts[act.slot]})
    run = check_workflow(ProposerSolver(), BEGINS, policy)
    assert run.answer == {"text": "3 + 4: 1 of 4 solved", "problem": "3 + 4", "correct": [True, False, False, False]}
    assert run.invalid == {("solver", "attempt3"): "not a whole number"}
    assert [shown(act) for act, _ in run.turns[1:]] == ["3 + 4"] * 4
    for reward, expected in ((proposer_learnability, 0.75), (proposer_uncertainty, 0.5)):
        roles = {"proposer": reward, "solver": solver_correct}
        episode = played(ProposerSolver(), BEGINS, ProposedArithmetic(), policy, rewards=roles, sides=RIVALS)
        assert episode.outcomes == {"proposer": 0.75, "solver": 0.25}
        assert not episode.success
        assert [turn.rewards["role"] for turn in episode.turns] == [expected, 1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("text", ["4 + 3", "3 + 2", "3 +", "3 + 4 + 5 + 6 + 7"])  # 3 + 2 is of the test split
def test_an_invalid_proposal_is_not_attempted(text: str) -> None:
    policy = ScriptedPolicy({"proposer": text, "solver": "7"})
    run = check_workflow(ProposerSolver(), BEGINS, policy, may_not_act=["solver"])
    assert (list(run.invalid), len(run.turns)) == ([("proposer", "0")], 1)
    rewards = {"proposer": proposer_uncertainty}
    episode = played(ProposerSolver(), BEGINS, ProposedArithmetic(), policy, rewards=rewards, sides=RIVALS)
    assert (episode.outcomes, episode.success) == ({"proposer": 0.0, "solver": 0.0}, False)
    assert episode.turns[0].rewards["role"] == 0.0


def test_problems_of_a_test_have_two_lengths_and_demonstrations_are_right() -> None:
    tasks = ProposedArithmetic(terms=3)
    problems = [arithmetic.parsed(task.data["problem"]) for task in tasks.generate("test", 10, 0)]
    assert [len(parts or ()) for parts in problems] == [3, 5] * 5
    for seen, text in tasks.demonstrations("solver", 50, 0, 1.0):
        assert int(text) == arithmetic.result(seen.split())
    assert all(text[0] == seen.split()[1] for seen, text in tasks.demonstrations("proposer", 50, 0, 1.0))


def test_the_judge_sees_what_was_quoted_and_decides() -> None:
    policy = ScriptedPolicy({"pro": "1 3", "con": "2, 4", "judge": "A"})
    run = check_workflow(MajorityDebateGame(quotes=2), SHOWN, policy)
    claims = [f"claim {letter} 1 A 2 B 3 A 4 B 5 A" for letter in "AB"]
    assert [shown(act) for act, _ in run.turns] == [*claims, "A B A B ?"]
    assert (run.answer["verdict"], run.invalid) == ("A", {})
    tasks = MajorityDebate(length=5)
    assert tasks.score(SHOWN, run.answer) == {"pro": 1.0, "con": -1.0}
    assert tasks.success(SHOWN, run.answer)
    assert tasks.score(SHOWN, {"verdict": "B"}) == {"pro": -1.0, "con": 1.0}
    assert not tasks.success(SHOWN, {"verdict": "B"})
    episode = played(MajorityDebateGame(quotes=2), SHOWN, tasks, policy, sides={"pro": "pro", "con": "con"})
    assert {turn.agent: turn.team_reward for turn in episode.turns} == {"pro": 1.0, "con": -1.0, "judge": 0.0}


@pytest.mark.parametrize("pro", ["5 5", "1 2 3"])
def test_debaters_cannot_forge_evidence_and_no_verdict_is_a_draw(pro: str) -> None:
    policy = ScriptedPolicy({"pro": pro, "con": "B B B", "judge": "A or B"})
    run = check_workflow(MajorityDebateGame(quotes=2), SHOWN, policy)
    why = "not 1 to 2 different positions of the list"
    assert run.invalid == {("pro", "0"): why, ("con", "0"): why, ("judge", "0"): "not one of A, B"}
    assert run.answer["text"] == "? ? ? ? ?: None"
    assert MajorityDebate().score(SHOWN, run.answer) == {"pro": 0.0, "con": 0.0}


# Role-conditioned advantages: the recurrence, what survives a checkpoint, and what zero-sum games imply


RAE = Algorithm(advantage=RoleConditioned())
Games = list[list[tuple[str, float]]]  # of a step: the turns of each game, as (role, outcome of the role)


def rows(games: Games) -> list[dict[str, Any]]:
    return [
        {**row("q", session, index, index, role), "team_reward": outcome}
        for session, turns in enumerate(games)
        for index, (role, outcome) in enumerate(turns)
    ]


def table(games: Games) -> RowTable:
    return RowTable.from_rows(rows(games))


def advantages(memory: AdvantageMemory, games: Games) -> list[float]:
    return [float(each) for each in memory.algorithm.compute(memory.recall(table(games))).advantage]


FIRST: Games = [[("one", 1.0), ("two", -1.0)], [("one", -2.0), ("two", 2.0), ("one", -2.0)]]
SECOND: Games = [[("one", 1.0), ("two", -1.0), ("one", 1.0)]]


def test_the_baseline_is_updated_before_it_is_subtracted() -> None:
    memory = AdvantageMemory(RAE)
    b1 = 0.05 * 1.0
    b2 = 0.95 * b1 + 0.05 * -2.0
    b3 = 0.95 * b2 + 0.05 * 1.0
    assert advantages(memory, FIRST) == pytest.approx([1 - b1, -1 + b1, -2 - b2, 2 + b2, -2 - b2], abs=1e-12)
    assert advantages(memory, SECOND) == pytest.approx([1 - b3, -1 + b3, 1 - b3], abs=1e-12)
    assert memory.values == pytest.approx({"one": b3, "two": -b3}, abs=1e-12)
    assert advantages(AdvantageMemory(RAE), SECOND) == pytest.approx([0.95, -0.95, 0.95], abs=1e-12)


def test_a_resumed_run_has_the_same_advantages_to_the_digit(tmp_path: Path) -> None:
    whole, before, after = (AdvantageMemory(RAE) for _ in range(3))
    advantages(whole, FIRST)
    advantages(before, FIRST)
    before.save(tmp_path / "advantage", 1)
    after.load(tmp_path / "advantage")
    assert (advantages(after, SECOND), after.values) == (advantages(whole, SECOND), whole.values)


def test_looking_ahead_and_rows_in_another_order_change_nothing() -> None:
    memory = AdvantageMemory(RAE)
    memory.recall(table(FIRST), keep=False)
    assert memory.values == {}
    assert AdvantageMemory(Algorithm()).recall(given_table := table(FIRST)) is given_table
    order = [4, 2, 0, 3, 1]
    recalled, after = RAE.recall(RowTable.from_rows([rows(FIRST)[i] for i in order]), {})
    assert after == RAE.recall(table(FIRST), {})[1]
    assert np.array_equal(recalled.numbers[BASELINE], RAE.recall(table(FIRST), {})[0].numbers[BASELINE][order])


def test_explain_recomputes_a_stored_step_with_its_baselines() -> None:
    memory = AdvantageMemory(RAE)
    advantages(memory, FIRST)
    now = memory.recall(table(SECOND))
    result = RAE.compute(now)
    explained = ExplainedRows(json.loads(json.dumps(step_document("grpo", RAE, now, result, 2))))
    assert [record["advantage"] for record in explained] == result.advantage.tolist()
    assert explained[0]["columns"][BASELINE] == explained[0]["baseline"]
